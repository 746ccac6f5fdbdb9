# The Rust and the Python that tools/setup chose, for the scripts that use them: they source this.
# shellcheck shell=bash disable=SC2154

tools="${BASH_SOURCE[0]%/*}"
[ -e "$tools/../target/setup.env" ] || "$tools/setup" demo
# shellcheck source=/dev/null
source "$tools/../target/setup.env"
# A folder that is looked into first anyway stays where it is: it may be /usr/bin.
[ "$(type -P rustc)" = "$setup_rust/rustc" ] || export PATH="$setup_rust:$PATH"
export PYTHON="${PYTHON:-$setup_python}"
