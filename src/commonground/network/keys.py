"""Certificates and keys for a deployment: an authority and a certificate for the server, a key for each node."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

import idna
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from commonground.access import reason
from commonground.errors import ConfigError
from commonground.quoting import quoted

__all__ = ["check_certificate", "check_own_certificate", "make_certificates", "make_node_key", "read_node_key"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

DAYS = 365
SOON = 30  # days before a certificate's end from which on it is told


def make_certificates(folder: Path, hosts: Sequence[str], days: float = DAYS) -> None:
    """Write ``ca.pem`` (which clients are given), ``server.pem`` and ``server.key``.

    The authority's key is not kept: to add a host, make all three anew.

    Args:
        folder: for the files.
        hosts: names and addresses under which clients reach the server.
        days: for which the certificates hold.

    Raises:
        ConfigError: one of the hosts is no name and no address.
    """
    reached_by = [_name(host) for host in hosts]
    folder.mkdir(parents=True, exist_ok=True)
    begins = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    begins = min(begins, ends - datetime.timedelta(days=1))
    authority, own = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "CommonGround deployment")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])

    def certificate(name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key)
        return builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)

    key_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        certificate(issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(key_id, critical=False)
        .sign(authority, hashes.SHA384())
    )
    leaf = (
        certificate(subject, own.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(reached_by), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.pem").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    _write_secret(folder / "server.key", _pem(own))


def check_certificate(path: Path) -> None:
    """Refuse a file that holds no certificate.

    Raises:
        ConfigError: there is no file, or something else in it.
    """
    where = "it is certificates/ca.pem of the server's folder"
    if not path.is_file():
        raise ConfigError(f"the server's certificate '{path}' is no file; {where}")
    try:
        x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--ca '{path}' cannot be read: {reason(error, path)}") from None
    except ValueError:
        raise ConfigError(f"--ca '{path}' is no certificate in PEM; {where}") from None


def check_own_certificate(folder: Path, hosts: Sequence[str] = ()) -> str:
    """Refuse a server's certificates that are over, or do not name what clients reach it by.

    Args:
        folder: of :func:`make_certificates`.
        hosts: names and addresses that have to be in them.

    Returns:
        When they end, as a sentence, if that is soon; else an empty text.

    Raises:
        ConfigError: says what is wrong, and what to do.
    """
    path = folder / "server.pem"
    try:
        one = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"the server's certificate '{path}' cannot be read: {error}") from None
    anew = f"clients need another one and its ca.pem; without '{folder}' the server makes them"
    ends = one.not_valid_after_utc
    left = ends - datetime.datetime.now(datetime.UTC)
    if left.total_seconds() <= 0:
        raise ConfigError(f"the server's certificate '{path}' ended on {ends:%Y-%m-%d}: {anew}")
    addresses, names = _hosts_of(one)
    for host in hosts:
        # As TLS takes them: an address is no name; in names case says nothing, and a star stands for one part.
        address, name = _as_address(host), _ascii(host).lower()
        if not (address in addresses if address else {name, f"*.{name.partition('.')[2]}"} & set(names)):
            shown = f"the address {host}" if address else host
            listed = ", ".join([*names, *map(str, addresses)]) or "no host"
            raise ConfigError(f"the server's certificate '{path}' is for {listed}, and not for {shown}: {anew}")
    return f"the server's certificate ends on {ends:%Y-%m-%d}: then {anew}" if left.days < SOON else ""


def _hosts_of(certificate: x509.Certificate) -> tuple[list[Address], list[str]]:
    """Addresses and names that a certificate is for."""
    try:
        hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    addresses = [address for address in hosts.get_values_for_type(x509.IPAddress) if isinstance(address, Address)]
    return addresses, [name.lower() for name in hosts.get_values_for_type(x509.DNSName)]


def make_node_key(folder: Path) -> Path:
    """Write ``node.key``, if there is none, and ``node.pub``, which the server's operator registers; its path.

    A folder that is made for it is its owner's alone: what is personal of the client will lie in it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "node.key").is_file():
        _write_secret(folder / "node.key", _pem(ec.generate_private_key(ec.SECP384R1())))
    public = read_node_key(folder).public_key()
    text = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "node.pub").write_bytes(text + b"\n")
    return folder / "node.pub"


def read_node_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The node's key.

    Raises:
        ConfigError: there is none, or it is of another kind.
    """
    path = folder / "node.key"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"the node's key '{path}' cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"the node's key '{path}' is none of an elliptic curve")
    return key


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _as_address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _name(host: str) -> x509.GeneralName:
    address = _as_address(host)
    return x509.DNSName(_ascii(host)) if address is None else x509.IPAddress(address)


def _ascii(host: str) -> str:
    """A name as certificates have it: parts with other letters encoded as httpx does, which clients use (IDNA 2008)."""
    name = host.removeprefix("*.")
    if not name:
        raise ConfigError(
            f"{quoted(host)} is no name of a host; give the one by which clients reach the server (--name)"
        )
    try:
        encoded = name.encode("idna") if name.isascii() else idna.encode(name.lower())
    except UnicodeError as error:
        raise ConfigError(f"{quoted(host)} is no name of a host: {error}") from None
    return host[: len(host) - len(name)] + encoded.decode("ascii")


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_secret(path: Path, content: bytes) -> None:
    """A file that nobody else can read, from its first moment on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
