"""``commonground serve``: a run's models as a service."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from commonground.cli.parameters import trust_code
from commonground.cli.sockets import listening
from commonground.counted import counted
from commonground.errors import ConfigError
from commonground.existing import check_run
from commonground.extras import pip_install
from commonground.quoting import quoted
from commonground.terminal import say

__all__ = ["serve"]


@click.command(
    short_help="A run's models as a service over HTTP.",
    epilog="Example: commonground serve runs/churn --token-for north; commonground serve runs/churn --port 8000",
)
@click.argument("run_dir", type=click.Path(path_type=Path, readable=False))
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="port; 0 takes a free one")
@click.option("--token-for", metavar="CLIENT", help="give out a token for this client, print it, and stop")
@click.option("--token-to-enrol", is_flag=True, help="give out a token that adds clients, print it, and stop")
@click.option("--revoke", metavar="CLIENT", help="end all tokens of this client, and stop")
@click.option("--revoke-to-enrol", is_flag=True, help="end all tokens that add clients, and stop")
@trust_code
def serve(
    run_dir: Path,
    host: str,
    port: int,
    token_for: str | None,
    token_to_enrol: bool,
    revoke: str | None,
    revoke_to_enrol: bool,
    trust_code: bool,
) -> None:
    """Answer clients of RUN_DIR over HTTP, each with its own model (POST /v1/predict with its token).

    Tokens are given out here and kept as hashes; a service that runs heeds at once what is given out and ended. With an
    enrolment token, POST /v1/clients adds a client from examples and gives it a token. /health, /metrics (Prometheus)
    and a page to try it need none. The service speaks plain HTTP: put a proxy with TLS before it where others can reach
    it.
    """
    check_run(run_dir)
    if sum((token_for is not None, token_to_enrol, revoke is not None, revoke_to_enrol)) > 1:
        raise ConfigError("give one of --token-for, --token-to-enrol, --revoke and --revoke-to-enrol")
    try:
        import uvicorn

        from commonground.engine.state.tokens import ENROL
        from commonground.serve import RunModels, Tokens, make_app
    except ImportError:
        raise ConfigError(f"serve needs the extra: {pip_install('serve')}") from None
    from commonground.engine.run import load_run

    run = load_run(run_dir, trust_code=trust_code)
    models, tokens = RunModels(run), Tokens(run_dir)
    if run.unfinished:
        say(run.unfinished)
    if token_for is not None:
        number = run.trained.known.number(token_for, by_number=False)
        if number < run.trained.clients:
            run.trained.own(number)  # refuses a client whose model is on its own host
        name = run.trained.known.names[number]
        print(tokens.issue(name))
        click.echo(f"for client {quoted(name)} of {run_dir}", err=True)
    elif token_to_enrol:
        print(tokens.issue(ENROL))
    elif revoke is not None:
        ended = tokens.revoke(revoke)
        if not ended:
            run.trained.known.number(revoke, by_number=False)  # refuses a name that is none
        print(f"{counted(ended, 'token')} ended")
    elif revoke_to_enrol:
        print(f"{counted(tokens.revoke(ENROL), 'token')} ended")
    else:
        run.trained.own(0)  # refuses a run over a network, whose clients have their models
        if not len(tokens):
            click.echo("no client has a token yet: commonground serve RUN_DIR --token-for CLIENT", err=True)
        socket = listening(host, port)  # here, so that the address that is told is the one that listens
        config = uvicorn.Config(
            make_app(models, tokens), host=host, port=port, log_level="warning", server_header=False
        )
        where = f"http://{f'[{host}]' if ':' in host else host}:{socket.getsockname()[1]}"
        click.echo(
            f"serving {counted(len(run.trained.known.names), 'client')} of {run_dir} at {where}; Ctrl-C ends it",
            err=True,
        )
        # uvicorn answers what has come, and then lets the signal act: what ends a service as it should is no failure.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.Server(config).run(sockets=[socket])
