"""The papers' tables: their files, their runs, their pages."""
