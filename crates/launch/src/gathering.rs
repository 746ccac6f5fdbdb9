//! Saying who is waited for, once, when some ranks have called `init()` and others have not.

use std::time::Duration;

use ronde_rendezvous::Ranks;

/// How long the first may wait before something is said.
const SILENCE: Duration = Duration::from_secs(3);

/// What is known about the ranks gathering.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    first: Option<Duration>,
    complained: bool,
    complete: bool,
}

impl Gathering {
    /// Takes in who has joined by now, and returns a line worth showing, if there is one.
    pub(crate) fn look(&mut self, now: Duration, joined: &[bool]) -> Option<String> {
        if self.complete {
            return None;
        }
        let having = |wanted: bool| {
            let ranks = joined.iter().enumerate().filter(move |(_, is)| **is == wanted);
            Ranks::new(ranks.map(|(rank, _)| rank))
        };
        let (here, missing) = (having(true), having(false));
        if missing.as_slice().is_empty() {
            self.complete = true;
            let waited = now.saturating_sub(self.first.unwrap_or(now)).as_secs_f64();
            return self
                .complained
                .then(|| format!("all {} ranks have called init() now ({waited:.1} s)", joined.len()));
        }
        if here.as_slice().is_empty() {
            return None;
        }
        let waited = now.saturating_sub(*self.first.get_or_insert(now));
        if self.complained || waited < SILENCE {
            return None;
        }
        self.complained = true;
        let seconds = waited.as_secs();
        let (has, have) = ("has waited", "have waited");
        let verb = if here.as_slice().len() == 1 { has } else { have };
        Some(format!("waiting for {missing} to call init() ({here} {verb} {seconds} s)"))
    }

    /// Whether there is nothing more to look for.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(script: &[(u64, &[bool])]) -> Vec<String> {
        let mut gathering = Gathering::default();
        let look = |(ms, joined): &(u64, &[bool])| gathering.look(Duration::from_millis(*ms), joined);
        script.iter().filter_map(look).collect()
    }

    #[test]
    fn a_quick_start_is_silent_and_so_is_one_nobody_joins() {
        let quick: &[(u64, &[bool])] = &[(0, &[false, false]), (100, &[true, false]), (3000, &[true, true])];
        assert_eq!(looks(quick), [""; 0]);
        let never: &[(u64, &[bool])] = &[(0, &[false; 4]), (60_000, &[false; 4])];
        assert_eq!(looks(never), [""; 0]);
    }

    #[test]
    fn whoever_is_waited_for_is_named_once_and_so_is_the_end_of_it() {
        let (t, f) = (true, false);
        let slow: &[(u64, &[bool])] = &[
            (5000, &[f, f, f, f]),
            (6000, &[t, t, f, f]),
            (8900, &[t, t, f, f]),
            (9000, &[t, t, f, f]),
            (9900, &[t, t, f, t]),
            (10_500, &[t, t, t, t]),
            (10_600, &[t, t, t, t]),
        ];
        assert_eq!(
            looks(slow),
            [
                "waiting for ranks 2 and 3 to call init() (ranks 0 and 1 have waited 3 s)",
                "all 4 ranks have called init() now (4.5 s)",
            ]
        );
    }
}
