"""Contract types for .importlinter that skip names which are not in the import graph.

import-linter's own `forbidden` and `protected` contracts fail when a package they name does not
exist, or when nothing imports a library they name. These two check the existing names, so that the
contracts of a package are in force from its first import on. A package cannot escape by its name:
the layers contract is exhaustive.
"""

from typing import Any

from grimp import ImportGraph
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.protected import ProtectedContract
from importlinter.domain.contract import ContractCheck


def _keep_present(contract: Any, graph: ImportGraph, *fields: str) -> None:
    # A contract's fields are class attributes that import-linter replaces by parsed values on the
    # instance, which is why they have no useful static type.
    for field in fields:
        present = [
            module
            for module in getattr(contract, field)
            if module.has_wildcard_expression() or module.expression in graph.modules
        ]
        setattr(contract, field, present)


class ForbiddenIfPresent(ForbiddenContract):
    """`forbidden`, for those source and forbidden modules that are in the graph."""

    type_name = "forbidden_if_present"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        _keep_present(self, graph, "source_modules", "forbidden_modules")
        return super().check(graph, verbose)


class Home(ProtectedContract):
    """`protected`, for those protected modules and importers that are in the graph."""

    type_name = "home"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        _keep_present(self, graph, "protected_modules", "allowed_importers")
        return super().check(graph, verbose)
