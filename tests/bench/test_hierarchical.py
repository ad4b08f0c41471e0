"""The figures of the hierarchical bench are those of the formulas, exactly."""

from hierarchical import measure


def test_two_levels_send_two_thirds_over_a_nodes_link():
    figures = {figure.name: figure for figure in measure()}
    assert {name: figure.value for name, figure in figures.items()} == {
        "flat_link_payloads": 1.5,
        "hierarchical_link_payloads": 1.0,
        "hierarchical_over_flat_link_bytes": 2 / 3,
    }
    assert all(figure.ok for figure in figures.values())
