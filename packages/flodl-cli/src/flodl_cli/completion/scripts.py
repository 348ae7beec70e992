"""The completion scripts: they ask the very fdl that stands on the command line."""

from __future__ import annotations

__all__ = ["SCRIPTS"]

_BASH = r"""# Completion of fdl for bash.
_fdl() {
    local answer directives line
    COMPREPLY=()
    answer=$("${COMP_WORDS[0]/#\~/$HOME}" --complete bash "$COMP_LINE" "$COMP_POINT" 2>/dev/null) || return 0
    directives=${answer%%$'\n'*}
    [[ $answer == *$'\n'* ]] || answer=
    while IFS= read -r line; do
        [[ -n $line ]] && COMPREPLY+=("${line%%$'\t'*}")
    done <<<"${answer#*$'\n'}"
    [[ $directives == *nospace* ]] && compopt -o nospace
    [[ $directives == *files* ]] && compopt -o default
    return 0
}
complete -F _fdl fdl
"""

_ZSH = r"""#compdef fdl
# Completion of fdl for zsh.
_fdl() {
    local -a lines described
    local directives line value
    lines=("${(@f)$("${(Q)words[1]/#\~/$HOME}" --complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    directives=$lines[1]
    for line in "${(@)lines[2,-1]}"; do
        value=${line%%$'\t'*}
        [[ -n $value ]] && described+=("${value//:/\\:}:${line#*$'\t'}")
    done
    if [[ $directives == *nospace* ]]; then
        _describe -V fdl described -S ''
    else
        _describe -V fdl described
    fi
    [[ $directives == *files* ]] && _files
    return 0
}
if [[ $funcstack[1] == _fdl ]]; then
    _fdl "$@"
else
    compdef _fdl fdl
fi
"""

_FISH = r"""# Completion of fdl for fish.
function __fdl_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] --complete fish $words[2..-1] "$current" 2>/dev/null)
    for line in $lines[2..-1]
        echo $line
    end
    if string match -q '*files*' -- "$lines[1]"
        __fish_complete_path "$current"
    end
end
complete -c fdl -f -a '(__fdl_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
