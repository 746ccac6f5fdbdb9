//! For working on Ronde: what the project's own tools and tests read.

use crate::variable::Kind::{Count, Path};
use crate::variable::Status::Honoured;
use crate::variable::variables;

variables! {
    /// Where tools and environments are kept. Without it `ronde` in `$XDG_CACHE_HOME` or `~/.cache`.
    CACHE = "RONDE_CACHE": Path, None, Honoured;

    /// How many ranks the test of sudden deaths kills in each layout.
    KILLS = "RONDE_KILLS": Count, Some("4"), Honoured;
}
