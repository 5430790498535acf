"""One look for all figures: a colour for each method, intervals drawn as they are.

The colours are Okabe and Ito's, which colour-blind readers can tell apart.
"""

import matplotlib.pyplot as plt

COLORS = {
    "bm25": "#E69F00",
    "dense": "#0072B2",
    "hybrid": "#009E73",
    "rerank": "#D55E00",
    "other": "#CC79A7",
    "reference": "#6E7781",
}
LABELS = {"bm25": "BM25", "dense": "dense", "hybrid": "hybrid", "rerank": "reranked"}


def set_style():
    """Set the figure style of the book.

    Figures have a white ground of their own, so that they read the same on
    light and dark pages.
    """
    plt.rcParams.update(
        {
            "figure.figsize": (7.2, 3.8),
            "figure.dpi": 110,
            "savefig.dpi": 160,
            "savefig.bbox": "tight",
            "figure.facecolor": "white",
            "axes.facecolor": "white",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.titlesize": 12,
            "axes.titlelocation": "left",
            "axes.labelsize": 11,
            "grid.color": "#E4E7EB",
            "grid.linewidth": 0.8,
            "font.size": 11,
            "font.family": "DejaVu Sans",
            "legend.frameon": False,
            "lines.linewidth": 2,
        }
    )


def interval_plot(table, ax=None, color=None, reference=None):
    """Draw a mean with its interval for each row of a table.

    Parameters
    ----------
    table : pandas.DataFrame
        Index: labels, drawn from top to bottom. Columns ``mean``, ``low``, ``high``.
    ax : matplotlib Axes, optional
    color : str or sequence of str, optional
        One for all rows, or one a row.
    reference : float, optional
        Where to draw a vertical line, such as 0 for differences.

    Returns
    -------
    matplotlib Axes
    """
    ax = ax or plt.gca()
    colors = [color or COLORS["dense"]] * len(table) if color is None or isinstance(color, str) else list(color)
    for place, (row, row_color) in enumerate(zip(table.itertuples(), colors, strict=True)):
        ax.plot([row.low, row.high], [place, place], color=row_color, linewidth=2, solid_capstyle="round")
        ax.plot(row.mean, place, "o", color=row_color, markersize=7)
    if reference is not None:
        ax.axvline(reference, color=COLORS["reference"], linewidth=1)
    ax.set_yticks(range(len(table)), [str(label) for label in table.index])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    return ax
