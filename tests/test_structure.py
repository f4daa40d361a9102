"""No module imports itself by a detour; who may import whom at all stands in pyproject.toml."""

from graphlib import TopologicalSorter

import grimp


def test_no_module_imports_itself_by_a_detour() -> None:
    """Imports within functions, for type checking alone and of a package's own file count."""
    graph = grimp.build_graph("chatapp", "finetune", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(tuple(TopologicalSorter(imported).static_order())) == len(imported) > 200
