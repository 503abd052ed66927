# SPDX-License-Identifier: Apache-2.0
"""What shells propose for a line of the program, from the table. The script that a shell reads asks for each word."""

from collections.abc import Mapping, Sequence
from typing import Any

from posenc_cli.arguments import COMMON, Described

SCRIPTS = {
    "bash": """\
_posenc() {
  local IFS=$'\\n'
  COMPREPLY=($(posenc --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _posenc posenc
""",
    "zsh": """\
#compdef posenc
_posenc() {
  local -a found
  found=("${(@f)$(posenc --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compadd -a found || _files
}
if [ "$funcstack[1]" = _posenc ]; then _posenc "$@"; else compdef _posenc posenc; fi
""",
    "fish": """\
complete -c posenc -a '(set -l words (commandline -opc) (commandline -ct); posenc --complete $words[2..] 2>/dev/null)'
""",
}
"""By shell: names of files are completed by the shell itself, where there is nothing to propose."""


def proposals(words: Sequence[str], table: Mapping[str, Any]) -> list[str]:
    """What the last of the words, which may be "", can become."""
    *before, last = words or [""]
    return [each for each in _candidates(before, last, table) if each.startswith(last)]


def _candidates(before: Sequence[str], last: str, table: Mapping[str, Any]) -> list[str]:
    commands = table["commands"]
    if not before or before == ["help"]:
        return [*commands, *([] if before else ["help", "--help", "--version", "--print-completion"])]
    if before == ["--print-completion"]:
        return list(SCRIPTS)
    if before[0] not in commands:
        return []
    settings = Described.from_json(before[0], commands[before[0]]).settings.values()
    if last.startswith("-"):
        return [s.written for s in settings if not s.how.positional] + ["--help", *(flag for flag, _, _ in COMMON)]
    flag, setting = next((word for word in reversed(before) if word.startswith("-")), None), None
    if flag is not None:
        setting = next((s for s in settings if s.written == flag), None)
        if setting is not None and (setting.type is bool or (before[-1] != flag and not setting.many)):
            setting = flag = None
    if flag is None:
        setting = next((s for s in settings if s.how.positional), None)
    if setting is None:
        return []
    return list(setting.choices or table["known"].get(setting.how.names, ()))
