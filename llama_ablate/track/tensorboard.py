"""TensorBoard: event files in the experiment's folder."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.track.sinks import SINKS, TrackedRun


@SINKS.register("tensorboard")
class TensorBoard:
    """Event files below `track/tensorboard`, a folder for each run, written anew each time."""

    package = "tensorboard"
    viewer = "tensorboard --logdir {folder}/tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = 0

    def open(self, run: TrackedRun) -> int:
        """Begin the run's event file, with its recipe as hyperparameters, in place of an earlier.

        So nothing of the run is there yet.
        """
        from tensorboard.plugins.hparams import metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionStartInfo
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        names = ("tensorboard", slug(run.group), f"{slug(run.name)}--{run.id}")
        place = disk.below(self._folder, *names)
        disk.remove_tree(place)
        self._writer = EventFileWriter(str(place))
        info = SessionStartInfo(group_name=run.id, start_time_secs=time.time())
        for key, value in run.flat.items():
            if isinstance(value, bool):
                info.hparams[key].bool_value = value
            elif isinstance(value, str):
                info.hparams[key].string_value = value
            else:
                info.hparams[key].number_value = value
        self._session(metadata.SESSION_START_INFO_TAG, session_start_info=info)
        return -1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars, to be seen at once."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._last = step
        self._write([Summary.Value(tag=key, simple_value=value) for key, value in values.items()])
        self._writer.flush()

    def finish(self, outcome: str, metrics: Mapping[str, float]) -> None:
        """Write the metrics at the last step, and whether the run ended ok."""
        from tensorboard.plugins.hparams import api_pb2, metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionEndInfo

        self.log(self._last, metrics)
        status = api_pb2.STATUS_SUCCESS if outcome == "ok" else api_pb2.STATUS_FAILURE
        info = SessionEndInfo(status=status, end_time_secs=time.time())
        self._session(metadata.SESSION_END_INFO_TAG, session_end_info=info)
        self._writer.close()

    def _session(self, tag: str, **info: Any) -> None:
        """Write what the dashboard HPARAMS shows; tensorboard's own writer needs TensorFlow."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.plugins.hparams import metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        data = HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **info)
        plugin = SummaryMetadata.PluginData(
            plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString()
        )
        self._write([Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])

    def _write(self, values: Sequence[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=values)
        self._writer.add_event(Event(wall_time=time.time(), step=self._last, summary=summary))
