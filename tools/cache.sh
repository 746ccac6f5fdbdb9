# The per-user cache of everything the project installs for itself; the other scripts here source it.
#
# An entry is a folder whose name holds a hash of what went into it, so a changed pin makes a new entry and
# several checkouts share one. It is filled under a lock and counts only once its `.complete` mark is there:
# a second set-up waits for the first, and one that was interrupted is started over.

cache_root="${RONDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ronde}"

# cache_entry NAME KEY: prints the folder of an entry, which need not be there.
cache_entry() {
    printf '%s\n' "$cache_root/$1-$(printf '%s' "$2" | sha256sum | cut -c1-12)"
}

# cached NAME KEY COMMAND...: prints the folder of entry NAME for KEY; where needed `COMMAND... FOLDER` fills it.
cached() {
    local entry
    entry="$(cache_entry "$1" "$2")"
    shift 2
    if [ ! -e "$entry/.complete" ]; then
        mkdir -p "$cache_root"
        fill_locked "$entry" "$@" 9>"$entry.lock" >&2 || return
    fi
    printf '%s\n' "$entry"
}

# Steps are chained by hand: bash ignores `set -e` inside a function whose status is tested.
fill_locked() {
    local entry=$1
    shift
    flock 9 || return
    if [ ! -e "$entry/.complete" ]; then
        echo "setting up ${entry##*/} (once; kept in $cache_root)"
        rm -rf "$entry" && "$@" "$entry" && touch "$entry/.complete"
    fi
}
