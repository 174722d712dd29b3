#compdef posse
# zsh completion of posse. Candidates come from `posse complete`.
_posse() {
    local line word
    local -a candidates
    for line in "${(@f)$("${words[1]}" complete -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
        '') ;;
        :files) _files ;;
        :folders) _files -/ ;;
        *)
            word=${line%%$'\t'*}
            candidates+=("${word//:/\\:}:${line#*$'\t'}")
            ;;
        esac
    done
    (( $#candidates )) && _describe 'posse' candidates
}
if [ "$funcstack[1]" = _posse ]; then
    _posse "$@"
else
    compdef _posse posse
fi
