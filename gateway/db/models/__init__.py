"""The tables, one file a subject; importing this package knows them all."""

from gateway.db.models.builds import Artefacts, Builds
from gateway.db.models.declare import Table
from gateway.db.models.fleet import DemandReports, Marks, Replicas, ScaleDecisions
from gateway.db.models.requests import Requests

__all__ = ["Artefacts", "Builds", "DemandReports", "Marks", "Replicas", "Requests", "ScaleDecisions", "Table"]
