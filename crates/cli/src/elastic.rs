//! What becomes of the flags for elastic jobs, which this version does not run.
//!
//! A job that may neither shrink nor grow is an ordinary job, so `--min-np` and `--max-np` equal to
//! `-np` are taken. Anything else that asks for a changing size is refused instead of doing something
//! else than asked.

use crate::args::ElasticArgs;
use crate::notes::Notes;
use crate::problem::Problem;

/// Refuses a job whose size may change.
pub(crate) fn check(args: &ElasticArgs, np: Option<usize>, notes: &mut Notes) -> Result<(), Problem> {
    let differs = |count: Option<usize>| count.is_some() && count != np;
    let changing = named(&[
        ("--host-discovery-script", args.host_discovery_script.is_some()),
        ("--min-np", differs(args.min_np)),
        ("--max-np", differs(args.max_np)),
    ]);
    if !changing.is_empty() {
        return Err(Problem::Elastic { flags: changing.join(", ") });
    }
    let idle = named(&[
        ("--min-np", args.min_np.is_some()),
        ("--max-np", args.max_np.is_some()),
        ("--slots-per-host", args.slots_per_host.is_some()),
        ("--elastic-timeout", args.elastic_timeout.is_some()),
        ("--reset-limit", args.reset_limit.is_some()),
        ("--blacklist-cooldown-range", args.blacklist_cooldown_range.is_some()),
    ]);
    if !idle.is_empty() {
        notes.without_effect(&idle, "this job has a fixed size; elastic jobs are not in this version");
    }
    Ok(())
}

fn named<'a>(flags: &[(&'a str, bool)]) -> Vec<&'a str> {
    flags.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(args: &ElasticArgs, np: Option<usize>) -> Result<String, String> {
        let mut notes = Notes::default();
        check(args, np, &mut notes).map_err(|problem| problem.to_string())?;
        Ok(notes.text(false))
    }

    #[test]
    fn a_job_that_may_change_its_size_is_refused_by_the_names_of_the_flags() {
        let script = ElasticArgs { host_discovery_script: Some("./hosts".to_owned()), ..Default::default() };
        let error = checked(&script, Some(2)).expect_err("a script");
        assert!(
            error.starts_with("--host-discovery-script: elastic jobs are not in this version"),
            "{error}"
        );
        for (min_np, max_np, np, flags) in [
            (Some(1), None, Some(2), "--min-np: "),
            (Some(2), Some(4), Some(2), "--max-np: "),
            (Some(1), Some(4), Some(2), "--min-np, --max-np: "),
            (Some(2), None, None, "--min-np: "),
        ] {
            let args = ElasticArgs { min_np, max_np, ..Default::default() };
            let error = checked(&args, np).expect_err(flags);
            assert!(error.starts_with(flags), "{error}");
        }
    }

    #[test]
    fn a_job_that_may_not_is_an_ordinary_one_with_a_note() {
        let args =
            ElasticArgs { min_np: Some(2), max_np: Some(2), reset_limit: Some(3), ..Default::default() };
        let expected = "note: --min-np, --max-np, --reset-limit have no effect: this job has a fixed size; \
                        elastic jobs are not in this version\n";
        assert_eq!(checked(&args, Some(2)), Ok(expected.to_owned()));
        assert_eq!(checked(&ElasticArgs::default(), Some(2)), Ok(String::new()));
    }
}
