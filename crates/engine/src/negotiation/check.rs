//! Whether everybody asked for the same, and if not, what to say.
//!
//! The first difference found fails the operation on every rank; the job goes on. The order of the checks and the words
//! that people search for are Horovod's; under the first line stands what each rank asked for. Three things differ:
//! reduction operations are compared for reducescatter too, groups must agree, and a reducescatter with a prescale
//! factor may exceed the fusion threshold, because here nothing has to fit a fusion buffer.

use std::fmt::Write as _;

use ronde_collective::types::ReduceOp;
use ronde_rendezvous::Ranks;

use super::messages::{Run, Variant};
use super::request::{Facts, Kind};

/// Sides of a mismatch that are listed; more would only hide the point.
const SIDES: usize = 8;

/// Who is in the set, for naming ranks.
pub(super) struct Census<'a> {
    /// Global rank of each position.
    pub(super) members: &'a [usize],
    /// Positions that have joined.
    pub(super) joined: &'a [usize],
}

/// A name as people know it: in quotes, without the prefix that only repeats the kind.
pub(super) fn quoted(kind: Kind, name: &str) -> String {
    let short = name.strip_prefix(&*kind.to_string()).and_then(|rest| rest.strip_prefix('.'));
    format!("\"{}\"", short.unwrap_or(name))
}

/// Extents in parentheses; rows that each rank has its own number of are a star.
fn shape(facts: &Facts) -> String {
    let star = usize::from(facts.kind.has_own_rows());
    let extents: Vec<String> = facts
        .shape
        .iter()
        .enumerate()
        .map(|(at, extent)| if at < star { "*".to_owned() } else { extent.to_string() })
        .collect();
    format!("({})", extents.join(", "))
}

fn factors(facts: &Facts) -> String {
    let (prescale, postscale) = facts.factors();
    format!("({prescale}, {postscale})")
}

fn group(facts: &Facts) -> String {
    match &facts.group {
        Some(tag) => format!("in group \"{}\" of {}", tag.name, tag.of),
        None => "in no group".to_owned(),
    }
}

fn set(facts: &Facts) -> String {
    let ranks: Vec<String> = facts.ranks.iter().map(ToString::to_string).collect();
    format!("[{}]", ranks.join(", "))
}

fn tensor(facts: &Facts) -> String {
    format!("{} {}", shape(facts), facts.dtype)
}

/// Checks what was asked for; `variants` come by their lowest position and are not empty. `partial` says that somebody
/// is missing because it has joined.
pub(super) fn check(variants: &[Variant], partial: bool, census: &Census<'_>) -> Result<(), String> {
    let facts: Vec<&Facts> = variants.iter().map(|variant| &*variant.facts).collect();
    let Some((&first, others)) = facts.split_first() else { return Ok(()) };
    let head = format!("{} {}", first.kind, quoted(first.kind, &first.name));
    let fail = |what: String, describe: &dyn Fn(&Facts) -> String| {
        Err(format!("{head}: {what}{}", sides(variants, census, describe)))
    };
    // The first that differs from the lowest rank's in some respect.
    fn odd<'a, T: PartialEq>(
        first: &Facts,
        others: &[&'a Facts],
        of: impl Fn(&Facts) -> T,
    ) -> Option<&'a Facts> {
        others.iter().find(|&&other| of(other) != of(first)).copied()
    }

    if facts.iter().any(|facts| facts.fault.is_some()) {
        return Err(format!("{head}: a rank found its arguments wrong{}", faults(variants, census)));
    }
    // A barrier has no type to differ in.
    if facts.iter().all(|facts| facts.kind.is_cached())
        && let Some(other) = odd(first, others, |facts| facts.dtype)
    {
        let what = format!(
            "Mismatched data types: one rank had type {}, but another rank had type {}.",
            first.dtype, other.dtype
        );
        return fail(what, &tensor);
    }
    if let Some(other) = odd(first, others, |facts| facts.kind) {
        let what = format!(
            "Mismatched operations: one rank asked for {}, but another rank asked for {}.",
            first.kind, other.kind
        );
        let sides = sides(variants, census, &|facts| match facts.kind.is_cached() {
            true => format!("{} of {}", facts.kind, tensor(facts)),
            false => facts.kind.to_string(),
        });
        return Err(format!("\"{}\": {what}{sides}", first.name));
    }
    let kind = first.kind;
    if let (false, Some(other)) = (kind.has_own_rows(), odd(first, others, |facts| facts.shape.clone())) {
        let what = format!(
            "Mismatched {kind} tensor shapes: one rank sent a tensor of shape {}, but another rank sent a tensor of \
             shape {}.",
            shape(first),
            shape(other)
        );
        return fail(what, &tensor);
    }
    if let Some(other) = odd(first, others, factors) {
        let what = format!(
            "Mismatched prescale and/or postscale factors: one rank sent factors {}, but another rank sent factors {}.",
            factors(first),
            factors(other)
        );
        return fail(what, &|facts| format!("{} factors {}", tensor(facts), factors(facts)));
    }
    if let Some(other) = odd(first, others, |facts| facts.op) {
        let what = format!(
            "Mismatched reduction operation: one rank asked for {}, but another rank asked for {}.",
            first.op, other.op
        );
        return fail(what, &|facts| format!("{} {}", tensor(facts), facts.op));
    }
    if partial && let Some(why) = with_join(first) {
        let joined = Ranks::new(census.joined.iter().map(|&position| census.members[position]));
        return Err(format!("{head}: {why}\n  joined: {joined}"));
    }
    if kind.has_own_rows() || kind == Kind::Reducescatter {
        if facts.iter().any(|facts| facts.shape.is_empty()) {
            let what = format!("{kind} of a rank-zero tensor: a tensor without dimensions has no rows.");
            return fail(what, &tensor);
        }
        if let Some(other) = odd(first, others, |facts| facts.shape.len()) {
            let what = format!(
                "Mismatched {kind} tensor shapes: one rank sent a tensor of rank {}, but another rank sent a tensor \
                 of rank {}.",
                first.shape.len(),
                other.shape.len()
            );
            return fail(what, &tensor);
        }
        if let Some(other) = odd(first, others, |facts| facts.shape.clone()) {
            let differs =
                first.shape.iter().zip(other.shape.iter()).position(|(one, two)| one != two).unwrap_or(0);
            let what = format!(
                "Mismatched {kind} tensor shapes: one rank sent a tensor with dimension {differs} equal to {}, but \
                 another rank sent a tensor with dimension {differs} equal to {}.",
                first.shape[differs], other.shape[differs]
            );
            return fail(what, &tensor);
        }
    }
    if let Some(other) = odd(first, others, |facts| facts.root) {
        let what = format!(
            "Mismatched broadcast root ranks: one rank specified root rank {}, but another rank specified root rank \
             {}.",
            first.root, other.root
        );
        return fail(what, &|facts| format!("root rank {}", facts.root));
    }
    if let Some(other) = odd(first, others, |facts| facts.device) {
        let what = format!(
            "Mismatched device selection: one rank specified {}, but another rank specified {}.",
            first.device, other.device
        );
        return fail(what, &|facts| format!("{} on {}", tensor(facts), facts.device));
    }
    if odd(first, others, |facts| facts.group.clone()).is_some() {
        return fail("Mismatched groups: ranks put this tensor in different groups.".to_owned(), &group);
    }
    if odd(first, others, |facts| facts.ranks.clone()).is_some() {
        return fail("Mismatched ranks: mismatching values on different ranks.".to_owned(), &set);
    }
    Ok(())
}

/// Why an operation cannot run with somebody missing who has joined, if it cannot.
fn with_join(facts: &Facts) -> Option<String> {
    let kind = facts.kind;
    let zeros = matches!(facts.op, ReduceOp::Min | ReduceOp::Max | ReduceOp::Product);
    match kind {
        Kind::Allreduce if facts.op == ReduceOp::Adasum => {
            Some("Adasum is not supported with Join: every rank must have a gradient.".to_owned())
        }
        Kind::Allreduce if zeros && facts.has_factors() => Some(format!(
            "{} with factors {} is not supported with Join: joined ranks have nothing to scale.",
            facts.op,
            factors(facts)
        )),
        Kind::Allreduce => None,
        _ => Some(format!("{kind} is not supported with Join: it needs every rank.")),
    }
}

/// A line for each way of asking, with the ranks that asked so.
fn sides(variants: &[Variant], census: &Census<'_>, describe: &dyn Fn(&Facts) -> String) -> String {
    let mut sides: Vec<(String, Vec<usize>)> = Vec::new();
    for variant in variants {
        let (text, ranks) = (describe(&variant.facts), ranks(variant, census));
        match sides.iter_mut().find(|(known, _)| *known == text) {
            Some((_, known)) => known.extend(ranks),
            None => sides.push((text, ranks)),
        }
    }
    list(sides)
}

fn faults(variants: &[Variant], census: &Census<'_>) -> String {
    let wrong =
        variants.iter().filter_map(|variant| Some((variant.facts.fault.clone()?, ranks(variant, census))));
    list(wrong.collect())
}

fn ranks(variant: &Variant, census: &Census<'_>) -> Vec<usize> {
    let positions = Run::all_below(&variant.holders, census.members.len()).unwrap_or_default();
    positions.into_iter().map(|position| census.members[position]).collect()
}

/// Lines of `ranks: text`, the texts under each other.
fn list(sides: Vec<(String, Vec<usize>)>) -> String {
    let more = sides.len().saturating_sub(SIDES);
    let named: Vec<(String, String)> =
        sides.into_iter().take(SIDES).map(|(text, ranks)| (Ranks::new(ranks).to_string(), text)).collect();
    let several = named.iter().any(|(who, _)| who.starts_with("ranks "));
    let lined: Vec<(String, String)> = named
        .into_iter()
        .map(|(who, text)| match who.strip_prefix("rank ") {
            Some(one) if several => (format!("rank  {one}:"), text),
            _ => (format!("{who}:"), text),
        })
        .collect();
    let width = lined.iter().map(|(who, _)| who.len()).max().unwrap_or(0);
    let mut list = String::new();
    for (who, text) in lined {
        // Writing to a string does not fail.
        let _ = write!(list, "\n  {who:width$} {text}");
    }
    if more > 0 {
        let _ = write!(list, "\n  and {more} more");
    }
    list
}
