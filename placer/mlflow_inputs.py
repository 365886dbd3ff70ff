"""The graph of a run as MLflow's dataset input, which its page shows and searches by.

MLflow keeps one dataset for each name and digest, with what the first run said of it. So the
dataset says only what belongs to the graph, whose fingerprint is the digest; what belongs to
the run's own profile, such as the topology, is in the tags of the run's input.
"""

import json

from placer.mlflow_store import OpenRun
from placer.profile import Profile
from placer.tracking_names import PROFILE_FINGERPRINT, TOPOLOGY, TOPOLOGY_FINGERPRINT

# isort: split
from mlflow.entities import Dataset, DatasetInput, InputTag

_CONTEXT = "mlflow.data.context"
_MAX_NAME = 500


def log_graph(run: OpenRun, name: str, profile: Profile) -> None:
    """Show a profile's graph as the dataset of a run; again is as good as once.

    Args:
        run: Builds on the profile.
        name: How people call the graph.
        profile: The graph, its costs and the topology.
    """
    graph, topology = profile.graph, profile.topology
    dataset = Dataset(
        name=name[:_MAX_NAME],
        digest=graph.fingerprint,
        source_type="code",
        source=json.dumps({"tags": {"mlflow.source.name": "placer profile"}}),
        profile=json.dumps({"num_ops": graph.num_ops, "num_tensors": len(graph.tensors)}),
    )
    tags = {
        _CONTEXT: "training",
        TOPOLOGY: topology.name[:_MAX_NAME],
        TOPOLOGY_FINGERPRINT: topology.fingerprint,
        PROFILE_FINGERPRINT: profile.fingerprint,
    }
    given = DatasetInput(dataset, [InputTag(key, value) for key, value in tags.items()])
    connection = run.store.connection
    with connection.errors():
        connection.client.log_inputs(run.run_id, [given])
