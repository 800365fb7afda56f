"""Shell scripts as bash reads them, without running anything: quotes, continued lines, variables, several commands.

What only a run could know (`$(date)`, `$USER`) stays in a word as a mark, so that it is asked for only where a job
needs it. A variable whose name says that it is a secret is always a mark: its value is in no word.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ptctl.errors import InputError
from ptctl.importers.secrets import is_secret

_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PARAMETER = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:(:?[-?=])([^{}]*))?\}|([A-Za-z_]\w*))")
_OPENING, _CLOSING = ("if", "for", "while", "until", "case"), ("fi", "done", "esac")
_KEYWORDS = ("then", "else", "elif", "do", "{", "}", "!", "time")
_DECLARATIONS = ("export", "readonly", "declare", "local")


@dataclass(frozen=True)
class Command:
    """One command: its words, the variables set before them, where it stands; conditional: in an if or a loop."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    line: int
    is_conditional: bool = False


@dataclass
class Script:
    """The commands of a text, and the variables that it sets; `exported` are those that its commands get."""

    variables: dict[str, str]
    commands: list[Command] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    depth: int = 0


def parse(text: str, variables: Mapping[str, str]) -> Script:
    """Return the commands of a script. Raises InputError for text that no shell takes."""
    script = Script(dict(variables))
    _Scanner(text, script).run()
    return script


def unknown(word: str) -> list[str]:
    """Return the variables (`NAME`) and commands (`$(…)`) of a word whose values are not known."""
    return _MARK.findall(word)


def as_text(word: str) -> str:
    """Return a word with its unknown variables as a shell writes them."""
    return _MARK.sub(lambda match: match[1] if match[1][:1] in "$`" else f"${{{match[1]}}}", word)


def mark(name: str) -> str:
    """Return the mark of an unknown variable or command."""
    return f"{_OPEN}{name}{_CLOSE}"


class _Scanner:
    def __init__(self, text: str, script: Script) -> None:
        self.text, self.script, self.at = text.replace("\r\n", "\n"), script, 0
        self.words: list[str] = []
        self.word: str | None = None
        self.heredocs: list[str] = []
        self.start = 0

    def run(self) -> None:
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_command()

    def _step(self, char: str) -> None:
        if char == "\\":
            following = self.text[self.at + 1 : self.at + 2]
            self._add("" if following == "\n" else following, begins=following != "\n")
            self.at += 2
        elif char == "'":
            end = self._find("'", self.at + 1)
            self._add(self.text[self.at + 1 : end])
            self.at = end + 1
        elif char == '"':
            self._double_quoted()
        elif char == "$" or char == "`":
            self._add(self._expansion(), begins=True)
        elif char == "#" and self.word is None:
            newline = self.text.find("\n", self.at)
            self.at = len(self.text) if newline < 0 else newline
        elif char in " \t":
            self._end_word()
            self.at += 1
        elif char in "\n;&|()":
            self._operator(char)
        elif self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at):
            self._heredoc()
        else:
            self._add(char)
            self.at += 1

    def _operator(self, char: str) -> None:
        if char == "&" and (self.word or "").endswith(">"):
            self._add(char)
            self.at += 1
            return
        self._end_command()
        self.at += 1
        if char == "\n" and self.heredocs:
            for delimiter in self.heredocs:
                match = re.compile(rf"^\s*{re.escape(delimiter)}\s*$", re.MULTILINE).search(self.text, self.at)
                self.at = match.end() if match else len(self.text)
            self.heredocs = []

    def _heredoc(self) -> None:
        match = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?").match(self.text, self.at)
        if match is None:
            raise self._error("<<", "a word after <<")
        self.heredocs.append(match[1])
        self.at = match.end()

    def _double_quoted(self) -> None:
        self._add("")
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                following = self.text[self.at + 1]
                self._add("" if following == "\n" else following)
                self.at += 2
            elif char in "$`":
                self._add(self._expansion())
            else:
                self._add(char)
                self.at += 1
        if self.at >= len(self.text):
            raise self._error('"', 'a closing "')
        self.at += 1

    def _expansion(self) -> str:
        if self.text[self.at] == "`":
            end = self._find("`", self.at + 1) + 1
        elif self.text.startswith("$(", self.at):
            end = self._end_of_substitution()
        else:
            match = _PARAMETER.match(self.text, self.at)
            if match:
                self.at = match.end()
                return self._value(match[1] or match[4], match[2] or "", match[3] or "")
            if not self.text.startswith("${", self.at):
                self.at += 1
                return "$"
            end = self._find("}", self.at) + 1
        text, self.at = self.text[self.at : end], end
        return mark(text)

    def _value(self, name: str, operator: str, default: str) -> str:
        value = self.script.variables.get(name, "")
        if value or (name in self.script.variables and not operator.startswith(":")):
            return value
        if operator.endswith(("-", "=")) and not is_secret(name):
            inner = parse(f'_="{default}"', self.script.variables)
            return inner.variables["_"]
        return mark(name)

    def _end_of_substitution(self) -> int:
        depth, at = 0, self.at + 1
        while at < len(self.text):
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
            at += 1
            if depth == 0:
                return at
        raise self._error("$(", "a closing )")

    def _find(self, char: str, start: int) -> int:
        end = self.text.find(char, start)
        if end < 0:
            raise self._error(char, f"a closing {char}")
        return end

    def _error(self, value: str, accepted: str) -> InputError:
        return InputError(f"line {self._line(self.at)}: {value}: accepted: {accepted}")

    def _line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def _add(self, text: str, *, begins: bool = True) -> None:
        if self.word is None:
            if not begins:
                return
            self.word = ""
            if not self.words:
                self.start = self.at
        self.word += text

    def _end_word(self) -> None:
        if self.word is not None:
            self.words.append(self.word)
        self.word = None

    def _end_command(self) -> None:
        self._end_word()
        words, self.words = self.words, []
        script = self.script
        while words and words[0] in (*_OPENING, *_CLOSING, *_KEYWORDS):
            script.depth += (words[0] in _OPENING) - (words[0] in _CLOSING)
            if words.pop(0) == "for":
                return  # the loop's variable has no one value
        environment: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            environment[match[1]] = _kept(match[1], match[2])
            words.pop(0)
        if words and words[0] in _DECLARATIONS:
            environment = {
                match[1]: _kept(match[1], match[2]) for word in words if (match := _ASSIGNMENT.fullmatch(word))
            }
            script.exported.update(environment)
            words = []
        if words:
            script.commands.append(
                Command(tuple(words), environment, self._line(self.start), is_conditional=script.depth > 0)
            )
        else:
            script.variables.update(environment)


def _kept(name: str, value: str) -> str:
    return mark(name) if value and is_secret(name) else value
