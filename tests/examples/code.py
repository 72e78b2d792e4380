"""How long an example is: lines that are neither blank, nor a docstring, nor a comment."""

import ast
import io
import tokenize


def code_lines(source: str) -> int:
    """Lines with code in them."""
    documented = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    held = {line for token in tokens if token.type not in silent for line in range(token.start[0], token.end[0] + 1)}
    return len(held - documented)
