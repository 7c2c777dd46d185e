"""A client's side of a network run, whatever carries the messages: its own data, its own folder, an answer to each.

Besides the questions of :mod:`commonground.engine.backends.message_kinds` a server first sends:

- ``hello``: describe your data (:mod:`commonground.data.described`);
- ``tell`` and ``agree``, to clients with tables: tell sums of your columns; this is what they become, describe your
  data (:mod:`commonground.data.tables.told`);
- ``begin``: this is the run: its settings, your number, the classes, and what else all clients have to agree on;
- ``off``: this run is not to be, since another client takes no part in it.

When the run is over, another kind, ``end``, brings the last shared tensors: with them the client has its own model,
which it keeps as a run's folder (``models/RUN``) that needs no server.

What a run begins with is kept beside the client's states, so that a client that was killed goes on where it was.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from commonground.config import RunConfig
from commonground.data import FederatedDataset
from commonground.data.described import LONGEST_TEXT, Demand, as_agreed, describe_client
from commonground.data.own_table import OwnTable
from commonground.data.tables.told import Agreed, StatisticsRequest, read_told
from commonground.data.text.tokens import pad_tokens
from commonground.data.validation import hold_out
from commonground.engine.backends.message_client import MessageClient
from commonground.engine.backends.message_kinds import Acknowledged, Failed
from commonground.engine.backends.serialization import pack
from commonground.engine.own_model import keep_own_model
from commonground.engine.prepare import prepare_setup
from commonground.engine.private.answers import GivenAnswers
from commonground.engine.private.secret import kept_secret, remove_secret
from commonground.engine.state.client import ClientStates
from commonground.engine.state.files import write_atomically
from commonground.engine.state.folder import FREE, NUMERIC_SETTINGS
from commonground.errors import CommonGroundError, ConfigError, DataError, RunError, UpdateError
from commonground.models import is_pretrained
from commonground.network.demands import files_of_weights, is_folder, unmet
from commonground.network.tuning import HeadTuningStart, tuning_setup
from commonground.precision import computing_with
from commonground.prediction.tested import write_tests
from commonground.quoting import escaped, quoted
from commonground.tasks import Regression
from commonground.user_code import is_code

__all__ = ["Answering", "Begin", "failed"]

DATA = "data.sha256"
"""Beside what a run begins with: which data the client began it with. It is told to nobody."""

_FOLDERS = re.compile(r"(^|[\s'\"(=])(?:[A-Za-z]:)?[/\\](?:[^'\"\n/\\]*[/\\])*(?=[^'\"\s/\\])")
"""The folders of an absolute path, and what stands before it."""


class Begin(BaseModel):
    """What a server tells a client of a run before its first question.

    Attributes:
        run: its id.
        config: the settings, as of ``config.toml``, every automatic one resolved.
        number: the client's.
        class_names: of all clients together.
        task_settings: likewise.
        tokens: of texts, of how many the longest is; shorter ones are padded.
        table: what all clients' tables become, if they have agreed on that.
        tuning: what it begins with, if it tunes another run's heads.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: Annotated[str, Field(pattern=r"\A[0-9a-f]{32}\z")]
    config: dict[str, Any]
    number: Annotated[int, Field(ge=0)]
    class_names: tuple[str, ...]
    task_settings: dict[str, Any] = {}
    tokens: Annotated[int, Field(ge=1, le=LONGEST_TEXT)] | None = None
    table: Agreed | None = None
    tuning: HeadTuningStart | None = None


class Answering:
    """Answers a server's messages.

    Args:
        data: the client's own, those of one client, or its table, if all clients agree on what its columns become.
        name: the client's.
        folder: where it keeps what is personal, by run.
        model_code: whether a model, loss or method may be named that is code in a Python file on this host.
        demand: what runs have to hide from the server, or this client takes no part: its ``example`` s, or all of the
            ``client``; None if the server may see what is sent. Then no statistics of its data are told either:
            targets that are numbers are scaled by those who tell theirs, and have to be of a usual size if nobody does.
        least_noise: the least Z with which they have to.
        least: training rows, without which mean and deviation of targets that are numbers are not told.
        tokenizer: of which model (``hf:NAME``) the data are tokens; None if they are none, or nobody says.
        note: hears what is for the client's owner alone.

    Raises:
        ConfigError: privacy is demanded, and clients would have to agree on what its table's columns become, or on
            classes that its data alone name.
    """

    def __init__(
        self,
        data: FederatedDataset | OwnTable,
        name: str,
        folder: Path,
        *,
        model_code: bool = False,
        demand: Demand | None = None,
        least_noise: float = 0.0,
        least: int = 1,
        tokenizer: str | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        if demand is not None and isinstance(data, OwnTable):
            raise ConfigError(
                f"client {escaped(name)} demands privacy, and what its table holds would be told to agree on columns; "
                "give --schema in place of --target"
            )
        if demand is not None and isinstance(data, FederatedDataset) and data.counted_classes and not data.tokens:
            raise ConfigError(
                f"client {escaped(name)} demands privacy, and its largest label would be told as the number of "
                "classes; name them all, by class_names in data.json or from_arrays(…, class_names=…)"
            )
        if demand is not None and isinstance(data, FederatedDataset) and data.one_of_many and data.tokens:
            raise ConfigError(
                f"client {escaped(name)} demands privacy, and the classes of its texts would be told to agree on all "
                "clients'; give file.py:function, which says them (class_names), in place of a table"
            )
        if not 0 <= least_noise < math.inf:
            raise ConfigError(
                f"the least noise of client {escaped(name)} must be a number of at least 0, not {least_noise}"
            )
        self.data, self.name, self.folder = data, name, folder
        self.model_code = model_code
        self.demand, self.least_noise, self.least = demand, least_noise, least
        self.tokenizer = tokenizer
        self.note = note
        self._clients: dict[str, MessageClient] = {}
        self._loaded: tuple[Agreed, FederatedDataset] | None = None  # of a table, as it was last agreed to be read
        self._unasked = ""  # the run that has begun last, if nothing has been asked since

    def hello(self) -> bytes:
        """The description of the data, or which columns its table has, as JSON. A table whose file has changed is read
        anew, since a run is about to begin; what has begun goes on with what it was described by.

        Raises:
            UpdateError: the table cannot be read any more, for which reason only its cause says.
        """
        if isinstance(self.data, OwnTable):
            self.data = self._current(self.data)
            return self.data.columns.model_dump_json().encode()
        return self._described(self.data)

    def _current(self, table: OwnTable) -> OwnTable:
        try:
            now = table.current()
        except CommonGroundError as error:
            raise UpdateError("its table cannot be read any more; its own log says why") from error
        if now is not table:
            self.note(f"'{table.path}' has changed and was read anew: {now.columns.train:,} training rows")
            for said in now.notes:
                self.note(said)
        return now

    def agree(self, kind: str, text: bytes) -> bytes:
        """Take a step towards what all clients' tables become (``tell``, ``agree``).

        Returns:
            What the columns hold, or the description of the data, as JSON.

        Raises:
            CommonGroundError: this client has no such table, or it does not fit.
        """
        if not isinstance(self.data, OwnTable):
            raise UpdateError("this client has no table to agree on")
        if kind == "tell":
            return self.data.statistics(read_told(StatisticsRequest, text)).model_dump_json().encode()
        self._loaded = None
        return self._described(self._own(read_told(Agreed, text)))

    def _described(self, data: FederatedDataset) -> bytes:
        """What is told of the data: of few rows' targets, and where privacy is demanded, neither mean nor deviation; of
        texts, where it is, the length that was asked for in place of the longest's.
        """
        longest = data.about.get("max_length") if data.tokens and self.demand is not None else None
        if longest is not None:
            data = replace(data, x_train=pad_tokens(data.x_train, longest), x_test=pad_tokens(data.x_test, longest))
        if isinstance(data.task, Regression) and (self.demand is not None or int(data.train_sizes[0]) < self.least):
            data = replace(data, task=Regression())
        told = describe_client(data, self.name)
        return (
            told.model_copy(update={"demand": self.demand, "least_noise": self.least_noise}).model_dump_json().encode()
        )

    def begin(self, text: bytes) -> bytes:
        """Take part in a run; what it begins with is kept.

        Returns:
            The run's id, as JSON.

        Raises:
            CommonGroundError: this client cannot, and says why.
        """
        begin = _read(text)
        old = self._file(begin.run)
        if old.is_file() and _lasting(_read(old.read_bytes())) != _lasting(begin):
            raise UpdateError(f"the run {begin.run} has begun here with other settings")
        self._clients = {begin.run: self._client(begin)}  # one at a time is in memory
        old.parent.mkdir(parents=True, exist_ok=True)
        self._unasked = ""
        if not old.is_file():
            self._unasked = begin.run
            write_atomically(old.with_name(DATA), self._own(begin.table).fingerprint())
        write_atomically(old, text)
        return json.dumps({"run": begin.run}).encode()

    def call_off(self, run: str) -> bytes:
        """Forget a run that is not to be; one of which anything was asked since it has begun here is left as it is.

        Returns:
            The run's id, as JSON.
        """
        if run == self._unasked:
            self._clients, self._unasked = {}, ""
            shutil.rmtree(self._file(run).parent, ignore_errors=True)
        return json.dumps({"run": run}).encode()

    def has_begun(self, run: str) -> bool:
        """Whether the client takes part in a run."""
        return re.fullmatch(r"[0-9a-f]{32}", run) is not None and self._file(run).is_file()

    def what_began(self, run: str) -> str:
        """What the client takes part in, in words: a run, or the tuning of its heads, which is one of another name."""
        tuning = _read(self._file(run).read_bytes()).tuning
        if tuning is None:
            return f"takes part in the run {run}"
        return f"tunes its head after the run {tuning.run}, in one of the name {run}"

    def ask(self, run: str, message: bytes) -> bytes:
        """The answer to a question of a run.

        Raises:
            CommonGroundError: there is none; its cause, if it has one, is for the owner alone.
        """
        client = self._of(run)
        with _as_its_run(client):
            return client.handle(message)

    def model_folder(self, run: str) -> Path:
        """Where the client's model is after a run, or after the tuning of its heads."""
        tuning = _read(self._file(run).read_bytes()).tuning
        return self.folder / "models" / (run if tuning is None else tuning.run)

    def end(self, run: str, message: bytes) -> bytes:
        """Keep the client's own model, now that the run is over.

        Raises:
            CommonGroundError: as of :meth:`ask`.
        """
        client = self._of(run)
        begin = _read(self._file(run).read_bytes())
        plain = None if begin.tuning is None else self._client(begin.model_copy(update={"tuning": None})).setup
        with _as_its_run(client):
            end, shared, personal = client.end(message)
            rounds = end.round, end.took_part
            folder = self.model_folder(run)
            trained = run if begin.tuning is None else begin.tuning.run
            answered = self._answers(trained, client.number).rounds
            kept = keep_own_model(client.setup, shared, personal, rounds, folder, plain, answered)
            write_tests(kept, client.setup.data)
        for over in (run, *(() if begin.tuning is None else (begin.tuning.run,))):
            self._over(over, client.number)
        self._loaded = None
        self.note(f"the run is over; this client's model is in '{folder}'")
        return pack(Acknowledged().model_dump(), {})

    def _over(self, run: str, number: int) -> None:
        """Answer nothing of a run again; then the secret of its noise may go."""
        self._clients.pop(run, None)
        self._answers(run, number).close()
        remove_secret(self._states(run))

    def _states(self, run: str) -> Path:
        return self.folder / "runs" / run / "states"

    def _answers(self, run: str, number: int) -> GivenAnswers:
        return GivenAnswers(ClientStates(self._states(run), number), escaped(self.name))

    def _of(self, run: str) -> MessageClient:
        self._unasked = ""
        if not self.has_begun(run):
            raise RunError(f"this client has not begun the run {quoted(run)}")
        if run not in self._clients:
            self._clients = {run: self._client(_read(self._file(run).read_bytes()))}
            self.note(f"goes on with the run {run}")
        return self._clients[run]

    def _file(self, run: str) -> Path:
        return self.folder / "runs" / run / "begin.json"

    def _client(self, begin: Begin) -> MessageClient:
        config = RunConfig.make(begin.config)
        self._check_code(config)
        self._check_files(config)
        self._check_privacy(config)
        if self.tokenizer is not None and config.model != self.tokenizer:
            raise UpdateError("its texts were read for another model than the run's") from ConfigError(
                f"the run's model is {escaped(str(config.model))}, and --tokenizer is {escaped(self.tokenizer)}"
            )
        own = self._own(begin.table)
        self._check_data(own, begin)
        data = replace(as_agreed(own, begin.class_names, begin.task_settings, begin.tokens), client_names=(self.name,))
        if config.validation_fraction:
            share, by_class = config.validation_fraction, config.draws_by_class
            data = hold_out(data, share, config.seed, [begin.number], by_class=by_class)
        setup = prepare_setup(config, data)
        if begin.tuning is not None:
            setup = tuning_setup(setup, begin.tuning)
        states = self._states(begin.run)
        # Whatever the server's settings say. It is kept, so that a question that is asked again gets no other noise.
        noise = None if setup.privacy is None and setup.examples is None else kept_secret(states)
        return MessageClient(setup, begin.number, states, noise=noise)

    def _own(self, agreed: Agreed | None) -> FederatedDataset:
        """The client's data; of a table, as all have agreed to read theirs."""
        if isinstance(self.data, OwnTable):
            if agreed is None:
                raise UpdateError("the server does not say what the columns of this client's table become")
            if self._loaded is None or self._loaded[0] != agreed:
                self._loaded = agreed, self.data.load(agreed)
            return self._loaded[1]
        return self.data

    def _check_data(self, own: FederatedDataset, begin: Begin) -> None:
        """A run goes on with the data that it began with: of others test rows may have been training rows."""
        for run in (begin.run, *(() if begin.tuning is None else (begin.tuning.run,))):
            kept = self._file(run).with_name(DATA)
            if not (self.has_begun(run) and kept.is_file()):  # an earlier version kept none
                continue
            before, now = kept.read_text("ascii", "replace"), own.fingerprint()
            if before != now:
                raise UpdateError("its data are others than those with which it began the run") from DataError(
                    f"the run {run} began here with other data (fingerprint {before[:12]}, now {now[:12]}), and this "
                    "client takes no part in it until these are back and it is started again"
                )

    def _check_privacy(self, config: RunConfig) -> None:
        """What a run hides is the server's to say, and whether to take part in it this client's owner's."""
        if why := unmet(self.demand, self.least_noise, config):
            raise ConfigError(why)

    def _check_files(self, config: RunConfig) -> None:
        """A server cannot make a client read weights on this host, which its answers would tell."""
        for what, value in files_of_weights(config).items():
            raise ConfigError(
                f"the server names weights that this host is to begin with ({what} {escaped(str(value))}); a run over "
                "a network begins with new ones"
            )
        model = str(config.model)
        if self.tokenizer is None and is_pretrained(model) and is_folder(model):
            raise ConfigError(
                f"the server names a folder of this host as its model ({escaped(model)}), whose head would be in "
                "answers; this client loads one that its owner names with --tokenizer"
            )

    def _check_code(self, config: RunConfig) -> None:
        """A server cannot make a client run a file, unless its owner allows what lies on this host."""
        for what, value in (
            ("model", config.model),
            ("loss", config.loss),
            ("method", config.algorithm),
            ("metric", config.metric),
        ):
            if value is not None and is_code(str(value)) and not self.model_code:
                raise ConfigError(
                    f"the server asks for the {what} {escaped(str(value))}, which is code; this client runs it only "
                    "with --allow-code"
                )


def _lasting(begin: Begin) -> Begin:
    """What a run cannot go on without; it may have more rounds, after which other heads are tuned."""
    config = {name: value for name, value in begin.config.items() if name not in FREE | NUMERIC_SETTINGS}
    tuning = None if begin.tuning is None else begin.tuning.model_copy(update={"head": ""})
    return begin.model_copy(update={"config": config, "tuning": tuning, "tokens": None})  # follow from the clients'


def failed(error: BaseException) -> bytes:
    """An answer that says why there is none. Files are named in it, and the folders of this host are not."""
    said = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        said = (
            f"{quoted(Path(str(error.filename)).name)} on its disk: {error.strerror}"
            if error.filename
            else error.strerror
        )
    return pack(Failed(error=_FOLDERS.sub(r"\1", said)).model_dump(), {})


def _as_its_run(client: MessageClient) -> AbstractContextManager[None]:
    """While open, this process computes as the client's run says: another one may have other threads."""
    return computing_with(client.setup.config.precision, client.setup.config.threads)


def _read(text: bytes) -> Begin:
    try:
        return Begin.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UpdateError(f"this begins no run: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
