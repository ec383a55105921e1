"""Read files of any accepted format into points, whatever their names, and keep the rows that belong together."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from breakeven.arm import Arm
from breakeven.errors import ForeignFileError, InputError
from breakeven.intake import file_text, shipped_rows
from breakeven.points import table
from breakeven.points.point import ENGINE, SETTING, Origin, Point
from breakeven.readers import foreign
from breakeven.readers.foreign import Document

_BY_HAND = "a points file: method,k,concurrency,mean_latency_s,achieved_rps,output_tokens"

_Reads = Callable[[Document, Arm], Sequence[Point | ForeignFileError]]


@cache
def _tools() -> Sequence[tuple[str, Callable[[Document], bool], _Reads]]:
    """The tools whose results are read, how one is known, and its reader; loaded for a file of them, which a table is not."""
    from breakeven.readers import aiperf, guidellm, summaries, vllmbench  # noqa: PLC0415

    return (
        ("GuideLLM", guidellm.recognises, guidellm.read),
        ("vllm bench serve, SGLang's bench_serving", vllmbench.recognises, vllmbench.read),
        ("AIPerf, GenAI-Perf", aiperf.recognises, aiperf.read),
        ("llm-d-benchmark", summaries.is_report, summaries.read_report),
        (", ".join(tool.name for tool in summaries.TOOLS), summaries.recognises, summaries.read),
    )


class Other(NamedTuple):
    """One row of `others.csv`: members of JSON or a begin of another text, the tool that writes it, and what to give instead."""

    known_by: str
    pattern: str
    tool: str
    instead: str


@cache
def others() -> Sequence[Other]:
    """The results of load generators that are known and not read."""
    rows = shipped_rows(Path(__file__).with_name("others.csv"))
    return [Other(known, pattern, tool, instead or _BY_HAND) for known, pattern, tool, instead in rows]


_SAME = 3

_BEGIN = 4096
"""Characters of a text in which a tool is looked for."""

_MOST_YAML = 256 * 2**10
"""A report of llm-d-benchmark has some 30,000 characters; as many as this take a second and 50 MB."""


def read_file(
    path: Path, arm: Arm | None = None, passed_over: list[ForeignFileError] | None = None
) -> tuple[Point, ...]:
    """Read one file.

    Args:
        path: a points file, or the result of a load generator.
        arm: which arm a file that does not say so belongs to.
        passed_over: gets the refusals of files and runs that hold no measurement; if None, the first one is raised.

    Raises:
        InputError: naming file and row or JSON path.
    """
    try:
        text = file_text(path, "a points file or a load generator's result")
    except ForeignFileError as refused:
        if passed_over is None:
            raise
        passed_over.append(refused)
        return ()
    return read_text(text, str(path), arm, passed_over=passed_over)


def read_text(
    text: str,
    source: str,
    arm: Arm | None = None,
    most_points: int = table.MOST_ROWS,
    passed_over: list[ForeignFileError] | None = None,
) -> tuple[Point, ...]:
    """Read the content of one file as `read_file` does; a file of more points is refused before any of them is read."""
    found: list[Point] = []
    foreign: dict[tuple[str, str], list[ForeignFileError]] = {}
    for one in _all(text, source, arm, most_points):
        if isinstance(one, Point):
            found.append(one)
        elif passed_over is None:
            raise one
        else:
            foreign.setdefault((one.problem, one.expected), []).append(one)
    if passed_over is not None:
        passed_over += (one for some in foreign.values() for one in _few(some))
    # Rows are numbered through the file, whichever of its results they come from.
    return tuple(
        one if one.origin.line is not None else replace(one, origin=replace(one.origin, row=row))
        for row, one in enumerate(found, start=1)
    )


def _few(some: Sequence[ForeignFileError]) -> Sequence[ForeignFileError]:
    """Refusals of one kind in one file; of more than three (a file of records) only the first is shown."""
    if len(some) <= _SAME:
        return some
    first = some[0]
    return [ForeignFileError(first.where, f"{first.problem} (and {len(some) - 1} more)", first.expected)]


def _all(text: str, source: str, arm: Arm | None, most_points: int) -> Iterator[Point | ForeignFileError]:
    if not _is_json(text) and not is_yaml(text):
        yield from _table(text, source, most_points)
        return
    documents = _documents(text, source, most_points) if _is_json(text) else _yaml_documents(text, source)
    try:
        for document in documents:
            yield from [document] if isinstance(document, ForeignFileError) else _read_document(document, arm)
    except ForeignFileError as refused:
        yield refused


def _table(text: str, source: str, most_points: int) -> Sequence[Point | ForeignFileError]:
    try:
        return table.read(text, source, most_points)
    except InputError as refused:
        header = next((line for line in _lines(text) if line.strip()), "")
        begin = text[:_BEGIN].lstrip("\ufeff \t\r\n")
        for other in others():
            if other.known_by == "begin" and re.match(other.pattern, begin, re.MULTILINE):
                return [
                    ForeignFileError(source, f"a result of {other.tool}, which is not read", other.instead)
                ]
        # A misspelt name of that column is one word. A log, a summary or a configuration may have the word in a sentence.
        if any("method" in name.lower() and " " not in name.strip() for name in re.split("[,;\t]", header)):
            raise
        return [ForeignFileError(refused.where, refused.problem, refused.expected)]


def distinct(points: Sequence[Point]) -> tuple[tuple[Point, ...], tuple[Origin, ...]]:
    """The points without the repeated results of load generators, and where those stand: a run counts once.

    Two runs never agree in every figure. Rows of a points file may, because people round them: they stay.
    """
    seen: set[tuple[tuple[str, object], ...]] = set()
    kept, repeated = [], []
    for one in points:
        # A summary of a sweep repeats its runs with what was varied beside them.
        figures = tuple(table.document(replace(one, extra={})).items())
        if one.origin.line is None and figures in seen:
            repeated.append(one.origin)
            continue
        seen.add(figures)
        kept.append(one)
    return tuple(kept), tuple(repeated)


def is_measured(text: str, source: str) -> bool:
    """Tell a file of measurements from a broken profile, whose refusal must be about profiles.

    Raises:
        InputError: it begins as JSON but is not valid.
    """
    if not _is_json(text):
        # A table, or a report as YAML.
        return True
    document = foreign.parse(text, source)
    return any(recognises(document) for _, recognises, _ in _tools())


def _is_json(text: str) -> bool:
    return text.lstrip("\ufeff \t\r\n").startswith(("{", "["))


def is_yaml(text: str) -> bool:
    """Whether this is a report of llm-d-benchmark: no header of a table is a whole line that ends with a colon."""
    return not _is_json(text) and any(line.rstrip() == "scenario:" for line in _lines(text))


def _yaml_documents(text: str, source: str) -> Iterator[Document]:
    import yaml  # noqa: PLC0415  a table needs none of it

    from breakeven.yaml_intake import yaml_documents  # noqa: PLC0415

    if len(text) > _MOST_YAML:
        raise InputError(
            source, f"{len(text)} characters of YAML", f"at most {_MOST_YAML}; JSON may be larger"
        )
    try:
        for value in yaml_documents(text):
            if value is not None:
                yield Document(value, source)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = " ".join(str(error).split())[:120]
        raise ForeignFileError(source, f"not YAML ({problem})", "a report of llm-d-benchmark") from None


def _documents(text: str, source: str, most: int) -> Iterator[Document | ForeignFileError]:
    """Split what holds several results: a JSON list, or one object per line (`vllm bench serve --append-result`).

    They are counted first, because a document of each would take a hundred times the memory of its text. A line that was cut
    off leaves the others.
    """
    if _one_per_line(text):
        lines = (
            _line(number, line, source) for number, line in enumerate(_lines(text), start=1) if line.strip()
        )
        yield from _at_most(most, sum(1 for line in _lines(text) if line.strip()), lines, source)
        return
    document = foreign.parse(text, source)
    if isinstance(document.value, list) and document.value:
        yield from _at_most(most, len(document.value), document.items(), source)
        return
    yield document


def _line(number: int, line: str, source: str) -> Document | ForeignFileError:
    try:
        return replace(foreign.parse(line, source), path=f"line {number}")
    except ForeignFileError as refused:
        return ForeignFileError(f"{source}: line {number}", refused.problem, refused.expected)


def _at_most(
    most: int, count: int, documents: Iterator[Document | ForeignFileError], source: str
) -> Iterator[Document | ForeignFileError]:
    """The documents.

    Raises:
        ForeignFileError: too many, and the first is no result: records or a data set.
        InputError: more results than are read.
    """
    if count <= most:
        yield from documents
        return
    first = next(documents)
    is_result = isinstance(first, Document) and any(recognises(first) for _, recognises, _ in _tools())
    refusal = InputError if is_result else ForeignFileError
    raise refusal(source, f"{count} results", f"at most {most}")


def _one_per_line(text: str) -> bool:
    """Whether each of several lines, blank ones aside, looks like an object; the last one may be cut off."""
    count, whole = 0, True
    for line in filter(None, map(str.strip, _lines(text))):
        if not (whole and line.startswith("{")):
            return False
        whole = line.endswith("}")
        count += 1
    return count > 1


def _lines(text: str) -> Iterator[str]:
    """The lines one by one: a list of short ones takes a hundred times the memory of the text, a StringIO four times."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def _read_document(document: Document, arm: Arm | None) -> Sequence[Point | ForeignFileError]:
    for _, recognises, read in _tools():
        if recognises(document):
            named = foreign.named_arm(document)
            chosen = arm or named
            if chosen is None:
                raise document.refuse(
                    "a file that does not say which arm it measured",
                    "--method and --k, or members method and k (vllm bench serve: --metadata method=eagle3 k=3)",
                )
            if named is not None and named != chosen:
                raise document.refuse(
                    f"says that {named} ran", f"that arm, not {chosen}, as --method and --k"
                )
            return read(document, chosen)
    for other in others():
        if other.known_by == "members" and document.has(*other.pattern.split(" | ")):
            return [document.disown(f"a result of {other.tool}, which is not read", other.instead)]
    return [
        document.disown("JSON of no known kind", f"a result of {', '.join(name for name, *_ in _tools())}")
    ]


def matching(points: Sequence[Point], conditions: Sequence[tuple[str, str]]) -> tuple[Point, ...]:
    """Keep the points whose columns have the given values; numbers compare as numbers.

    Raises:
        InputError: no point is left, naming the values that the column has.
    """
    kept = list(points)
    for column, wanted in conditions:
        found = [one for one in kept if _equal(one.text(column), wanted)]
        if not found:
            values = _values(kept, column)
            shown = ", ".join(values[:8]) if values else "no value in any row"
            raise InputError(f"--where {column}={wanted}", "no such row", f"a value of that column ({shown})")
        kept = found
    return tuple(kept)


def grouped(points: Sequence[Point], column: str) -> dict[str, tuple[Point, ...]]:
    """Split by the values of a column, in order of appearance.

    Raises:
        InputError: a row has no value there.
    """
    groups: dict[str, list[Point]] = {}
    for one in points:
        value = one.text(column)
        if value is None:
            raise InputError(one.origin.of(column), "nothing there", f"a value, for --group-by {column}")
        groups.setdefault(value, []).append(one)
    return {value: tuple(members) for value, members in groups.items()}


def one_setting(points: Sequence[Point]) -> None:
    """Refuse points of more than one workload, GPU, model, engine or tokenizer: no law holds across them.

    Raises:
        InputError: naming the column and its values.
    """
    for column in (*SETTING, *ENGINE):
        values = _values(points, column)
        if len(values) > 1:
            sources = " ".join(dict.fromkeys(one.origin.source for one in points))
            shown = ", ".join(values[:8])
            raise InputError(
                f"{sources}: column {column}",
                f"{len(values)} values ({shown})",
                f"one: say which with --where {column}={values[0]}, or fit each with --group-by {column}",
            )


def _values(points: Sequence[Point], column: str) -> list[str]:
    return list(dict.fromkeys(value for one in points if (value := one.text(column)) is not None))


def _equal(value: str | None, wanted: str) -> bool:
    if value is None:
        return False
    if value == wanted:
        return True
    try:
        return float(value) == float(wanted)
    except ValueError:
        return False


_MOST_FILES = 10_000
_PATTERN = frozenset("*?[")


class SweepFiles(NamedTuple):
    """Points of a sweep; `notes` name what was passed over, cut off, or has no known meaning."""

    points: tuple[Point, ...]
    notes: tuple[str, ...]


def read_sweep(
    given: Sequence[Path], arms: Mapping[Path, tuple[Arm, str | None]] | None = None
) -> SweepFiles:
    """Read all files of a sweep.

    Args:
        given: files, folders, and patterns such as `runs/*.json`.
        arms: the arm, and its schedule if it has one, of what does not name its arm.

    Raises:
        InputError: as the readers; also if nothing is a result, or there is no such file.
    """
    read: list[Point] = []
    foreign: list[ForeignFileError] = []
    for place in given:
        arm, schedule = (arms or {}).get(place, (None, None))
        for file in files_in(place):
            # A folder of results also holds logs, summaries and configurations, and runs without a single answer.
            found = read_file(file, arm, foreign)
            # The rows of a table say themselves which arm they are of.
            read += (
                one if schedule is None or one.origin.line else replace(one, schedule=schedule)
                for one in found
            )
    if foreign and not read:
        raise foreign[0]
    points, repeated = distinct(read)
    return SweepFiles(points, tuple(_notes(foreign, repeated, points)))


def files_in(path: Path) -> tuple[Path, ...]:
    """The files of a folder and of the folders in it, or of a pattern, in order of their names; of a file that file itself.

    Raises:
        InputError: there is none, or there are more than a sweep has; hidden ones do not count.
    """
    if not path.exists() and is_pattern(path):
        matching = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
        if not matching:
            raise InputError(str(path), "a pattern that no file matches", "the results of a sweep")
        return tuple(file for one in matching for file in files_in(one))
    if not path.is_dir():
        return (path,)
    found: list[Path] = []
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        found += (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        if len(found) > _MOST_FILES:
            raise InputError(
                str(path), f"a folder of more than {_MOST_FILES} files", "the results of a sweep"
            )
    found = [one for one in found if one.is_file()]
    if not found:
        raise InputError(str(path), "a folder without a file", "the results of a sweep")
    return tuple(found)


def is_pattern(path: Path) -> bool:
    """Whether a path has signs that stand for other letters, as a shell takes them."""
    return not _PATTERN.isdisjoint(str(path))


def _notes(
    foreign: Sequence[ForeignFileError], repeated: Sequence[Origin], points: Sequence[Point]
) -> Iterator[str]:
    """Notes about the files: those passed over, remarks on runs, runs whose ends were cut off, keys that no reader uses."""
    for refused in foreign:
        yield f"passed over: {refused}"
    for origin in repeated:
        yield f"passed over: {origin}: the same run was given before"
    for origin in (one.origin for one in points if one.origin.part):
        yield f"ends cut off: {origin}: {origin.part}"
    remarks: dict[str, list[Origin]] = {}
    for origin in (one.origin for one in points if one.origin.remark):
        remarks.setdefault(origin.remark, []).append(origin)
    for remark, origins in remarks.items():
        more = f" and {len(origins) - 1} more" if len(origins) > 1 else ""
        yield f"{origins[0]}{more}: {remark}"
    unknown: dict[str, dict[str, None]] = {}
    for one in points:
        unknown.setdefault(one.origin.tool, {}).update(dict.fromkeys(one.unknown))
    for tool, keys in unknown.items():
        if keys:
            yield f"{tool}: keys without a known meaning, not used: {', '.join(keys)[:300]}"
