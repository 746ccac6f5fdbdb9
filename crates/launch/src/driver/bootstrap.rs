//! The command that ssh runs on a host: find our own program there and become its agent, or ask for the program first.
//!
//! It must work in any login shell, so it is one word for `/bin/sh`, without quotes that shells treat differently. The
//! program lies in a cache under the hash of its contents, written under another name and renamed. One that was cut short
//! since, by a full disk or a crash, has another size and is replaced. A copy at the place where it lies on this machine
//! does as well. The script must outlive the connection, to remove what was sent in part, so nothing it says may kill it.

use std::path::Path;

/// What to run on a host that may or may not have the program with this hash and size.
pub(super) fn command(hash: &str, size: u64, own_path: &Path) -> String {
    let own_path = quoted(&own_path.to_string_lossy());
    let script = format!(
        r#"trap "" PIPE; B={hash}; C="${{XDG_CACHE_HOME:-$HOME/.cache}}/ronde/agents"; R="$C/$B"; P={own_path};
if [ ! -x "$R" ] || [ "$(wc -c <"$R")" -ne {size} ]; then
  if [ -x "$P" ] && [ "$("$P" agent --fingerprint 2>/dev/null)" = "$B" ]; then R="$P"; else
    T="$C/.$B.$$"; umask 077;
    mkdir -p "$C" && : >"$T" || {{ printf "\n\001ronde agent failed\001\n"; exit 97; }};
    printf "\n\001ronde agent needed\001 %s\n" "$(uname -sm)";
    if head -c {size} >"$T" && chmod 700 "$T" && [ "$("$T" agent --fingerprint)" = "$B" ] && mv -f "$T" "$R"; then :;
    else rm -f "$T"; printf "\n\001ronde agent failed\001\n"; exit 97; fi;
  fi;
fi;
trap - PIPE; exec "$R" agent --stdio"#
    );
    let script: String = script.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    format!("exec /bin/sh -c '{script}'")
}

/// A path inside double quotes inside single quotes. One that cannot stand there is left out: the cache does.
fn quoted(path: &str) -> String {
    let harmless = |letter: char| letter.is_alphanumeric() || "/._-+ ".contains(letter);
    match path.chars().all(harmless) {
        true => format!("\"{path}\""),
        false => "\"\"".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_one_line_with_one_pair_of_single_quotes() {
        for path in ["/opt/venv/bin/ronde", "/home/o'brien/ronde", "/tmp/$(reboot)/ronde"] {
            let command = command("abc", 12, Path::new(path));
            assert!(!command.contains('\n'));
            assert_eq!(command.matches('\'').count(), 2, "{command}");
            assert!(!command.contains("reboot"), "{command}");
        }
        assert!(command("abc", 12, Path::new("/a b/ronde")).contains("P=\"/a b/ronde\""));
    }
}
