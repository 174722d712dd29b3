# bash completion of posse. Candidates come from `posse complete`.
_posse() {
    local line
    local -a lines
    COMPREPLY=()
    mapfile -t lines < <("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    for line in "${lines[@]}"; do
        case $line in
        :files) compopt -o default ;;
        :folders) compopt -o dirnames ;;
        *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done
}
complete -F _posse posse
