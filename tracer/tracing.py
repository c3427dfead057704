"""Trace one file, or a whole tree."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from auxtap.core.collector import collector_paused
from auxtap.core.errors import SourceError
from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tracer.branches.branch_roles import classify_branches
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.flow.facts import find_facts
from auxtap.tracer.flow.flow_finder import FlowFinder
from auxtap.tracer.flow.flow_steps import find_delivery
from auxtap.tracer.flow.layers import find_layer_rules
from auxtap.tracer.flow.selection import DEFAULT_MODELS, find_file, model_files, surrounding_files
from auxtap.tracer.flow.setters import DraftSetter, find_setters
from auxtap.tracer.hazards.hazard_finder import SKIPPING, find_hazards
from auxtap.tracer.hazards.plugin_way import find_plugin_way
from auxtap.tracer.reading.trees import read_models
from auxtap.tracer.report.entries import FileTrace, Mentions
from auxtap.tracer.report.trace_report import Flow, FlowStep, Hazard, SkippedFile, TraceReport
from auxtap.tracer.sites.notes import annotate_branches, annotate_sites
from auxtap.tracer.sites.site_roles import classify_sites
from auxtap.tracer.source.fragments import SourceFile
from auxtap.tracer.source.names import may_hold_names
from auxtap.tracer.source.occurrences import gather_occurrences
from auxtap.tracer.source.trace_cache import NO_CACHE, TraceCache


def trace_file(path: PurePosixPath, data: bytes) -> FileTrace:
    """Return every capture site and stage branch of one source file.

    Raises:
        SourceError: the file is not Python.
    """
    if not may_hold_names(data):
        return FileTrace(path, (), ())
    return trace_source(SourceFile.read(path, data))


def trace_source(source: SourceFile) -> FileTrace:
    """Return every capture site and stage branch of a file that was read already.

    Raises:
        SourceError: it is nested too deeply.
    """
    try:
        return _trace_source(source)
    except RecursionError:
        raise SourceError(f"{source.path} is nested too deeply", hint="look at it yourself") from None


def _trace_source(source: SourceFile) -> FileTrace:
    gathered = gather_occurrences(source)
    sites = classify_sites(item for item in gathered.occurrences if item.kind is not None)
    branches = classify_branches(item for item in gathered.occurrences if item.kind is None)
    return FileTrace(
        file=source.path,
        capture_sites=tuple(annotate_sites(sites)),
        stage_branches=tuple(annotate_branches(branches)),
        mentions=gathered.mentions,
    )


def trace_tree(
    tree: SourceTree,
    models: Sequence[str] = DEFAULT_MODELS,
    *,
    everything: bool = False,
    only: PurePosixPath | None = None,
    num_layers: int | None = None,
    cache: TraceCache = NO_CACHE,
) -> TraceReport:
    """Trace the files between the capture and the consumer for `models`, or one file, or every file below srt.

    A file that cannot be parsed is passed over and named in the report.

    Raises:
        UsageError: a model name or the file is not known.
        SourceError: the one file that was asked for is not Python, or the tree has no models.
    """
    with collector_paused():
        return _trace_tree(_TreeTracer(tree, cache), models, everything, only, num_layers)


def trace_setters(tree: SourceTree, cache: TraceCache = NO_CACHE) -> tuple[DraftSetter, ...]:
    """Return what the setters of every model class make of a draft model's ids."""
    with collector_paused():
        tracer = _TreeTracer(tree, cache)
        flows = tracer.every_flow()
        traces = [tracer.trace(path) for path in tracer.index.model_files]
        return find_setters(traces, flows, find_layer_rules(traces, flows, None))


def _trace_tree(
    tracer: "_TreeTracer",
    models: Sequence[str],
    everything: bool,
    only: PurePosixPath | None,
    num_layers: int | None,
) -> TraceReport:
    tree = tracer.index.tree
    if only is not None:
        shown, flows = tracer.one_file(find_file(tracer.index, only))
    elif everything:
        shown, flows = tracer.every_file()
    else:
        shown, flows = tracer.files_of(models)
    traces = tuple(tracer.trace(path) for path in shown)
    layer_rules = find_layer_rules(traces, flows, num_layers)
    hazards = find_hazards(tracer.index, traces, everything=everything)
    return TraceReport(
        release=tree.release,
        origin=tree.origin,
        commit=tree.commit,
        changed=tree.changed,
        files=traces,
        flows=tuple(_with_skips(flow, hazards) for flow in flows),
        layer_rules=layer_rules,
        facts=(*find_facts(traces, flows, layer_rules), *(() if only else (find_plugin_way(tree).fact,))),
        hazards=hazards,
        num_layers=num_layers,
        delivery=find_delivery(tracer.index) if flows else (),
        readings=tuple(read_models(tracer.index, [path for path in shown if path in tracer.index.model_files])),
        skipped=tuple(SkippedFile(path, reason) for path, reason in sorted(tracer.index.skipped.items())),
    )


def _with_skips(flow: Flow, hazards: Sequence[Hazard]) -> Flow:
    """Return the flow with the paths on which its layers run and nothing is captured."""
    owners = {(link.file, link.name) for link in flow.links}
    skips = [
        FlowStep("skip", hazard.text, item)
        for hazard in hazards
        if hazard.name in SKIPPING
        for item in hazard.evidence
        if (item.file, item.scope.split(".")[0]) in owners
    ]
    return replace(flow, steps=(*flow.steps, *skips))


def _is_empty(trace: FileTrace) -> bool:
    return not trace.capture_sites and not trace.stage_branches and trace.mentions == Mentions()


class _TreeTracer:
    """Traces each file of one tree at most once."""

    def __init__(self, tree: SourceTree, cache: TraceCache) -> None:
        self.index = ClassIndex(tree)
        self.traces: dict[PurePosixPath, FileTrace] = {}
        self._cache = cache

    def trace(self, path: PurePosixPath) -> FileTrace:
        if path not in self.traces:
            self.traces[path] = self._trace(path)
        return self.traces[path]

    def _trace(self, path: PurePosixPath) -> FileTrace:
        data = self.index.tree.files[path]
        if not may_hold_names(data):
            return FileTrace(path, (), ())
        found = self._cache.find_trace(path, data)
        if found is None:
            try:
                found = trace_source(self.index.source(path))
            except SourceError as error:
                self.index.skipped[path] = error.message
                return FileTrace(path, (), ())
            self._cache.keep_trace(found, data)
        return found

    def one_file(self, path: PurePosixPath) -> tuple[list[PurePosixPath], list[Flow]]:
        """Return that file, and the flows that begin in it."""
        flows = self._flows_of([path] if path in self.index.model_files else [])
        self.trace(path)
        if path in self.index.skipped:
            raise SourceError(self.index.skipped[path], hint="is it a Python source file?")
        return [path], flows

    def every_file(self) -> tuple[list[PurePosixPath], list[Flow]]:
        """Return every file below srt (of a tree without one: every file) that holds a name, and all flows."""
        files = self.index.tree.files
        asked = sorted(path for path in files if path.is_relative_to(SRT_ROOT)) or sorted(files)
        shown = [path for path in asked if not _is_empty(self.trace(path))]
        return shown, self.every_flow()

    def every_flow(self) -> list[Flow]:
        """Return the flow of every model class that has one."""
        return self._flows_of(self._files_that_may_capture())

    def files_of(self, models: Sequence[str]) -> tuple[list[PurePosixPath], list[Flow]]:
        """Return the files of those models, with those that their flows pass through, and the flows."""
        chosen = model_files(self.index, models)
        flows = self._flows_of(chosen)
        linked = [link.file for flow in flows for link in flow.links]
        in_layer = any(site.role == "collector_hand_in" for path in linked for site in self.trace(path).capture_sites)
        shared = surrounding_files(self.index, in_layer=in_layer)
        return list(dict.fromkeys([*chosen, *linked, *shared])), flows

    def _flows_of(self, paths: Sequence[PurePosixPath]) -> list[Flow]:
        finder = FlowFinder(self.index, self.trace)
        flows = (finder.find_flow(found) for path in paths for found in self.index.entry_classes(path))
        return [flow for flow in flows if flow is not None]

    def _files_that_may_capture(self) -> list[PurePosixPath]:
        """Return the model files with a capture name, and those that name a class of one of them."""
        files = self.index.tree.files
        capturing = [path for path in self.index.model_files if self.trace(path).capture_sites]
        names = {found.name.encode() for path in capturing for found in self.index.entry_classes(path)}
        naming = (path for path in self.index.model_files if any(name in files[path] for name in names))
        return sorted({*capturing, *naming})
