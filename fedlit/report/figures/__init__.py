"""The figures of a report: drawn from run folders, written as PNG and PDF, without a display."""

from fedlit.report.figures.base import Figure as Figure
from fedlit.report.figures.draw import draw_figures as draw_figures
