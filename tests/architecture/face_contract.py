"""The check of faces as a contract of import-linter, so that ``make imports`` has it too."""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, output

from tests.architecture.faces import ways_around


class FaceContract(Contract):
    """No import goes around the face of a room; it has no options."""

    type_name = "faces"

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        found = ways_around()
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["found"]:
            output.print_error(line)
        output.print_error("Import a name of the face, or add the module to __all__ of the package")
