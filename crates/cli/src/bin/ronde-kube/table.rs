//! A plan as people read it.
//!
//! ```text
//!   node    free / all   plan
//!   node-1   5 / 8       ■■■■■   5
//!   node-2   3 / 4       □□□     –   6 = 5 + 1 needs one more GPU; node-3 fits tighter
//!   node-3   2 / 8       ■□      1   chief
//! 6 GPUs on 2 nodes (policy pack). Balanced would be 3 + 3 on node-1, node-2: --policy balance
//! ```

use std::fmt::Write;

use ronde_placement::{Plan, Policy, Share, Verdict};

/// The longest row of squares; nodes with more GPUs are drawn smaller.
const WIDEST: u32 = 16;
/// Nodes that are not used are shown up to here, in large clusters.
const MOST_ROWS: usize = 40;

/// The table, and what it comes to.
pub(super) fn plan(plan: &Plan, unicode: bool) -> String {
    let mut text = verdicts(&plan.nodes, &plan.shares, unicode);
    let (count, nodes) = (plan.gpus, plan.shares.len());
    let _ = write!(
        text,
        "{} on {} (policy {}).",
        counted(count as usize, "GPU"),
        counted(nodes, "node"),
        plan.policy
    );
    if let Some(other) = plan.alternatives.first() {
        let word = match other.policy {
            Policy::Pack => "Packed",
            Policy::Balance => "Balanced",
            Policy::Spread => "Spread",
            Policy::InOrder => "In order",
        };
        let _ = write!(text, " {word} would be {}: --policy {}", summary(&other.shares), other.policy);
    }
    text.push('\n');
    text
}

/// What became of every node.
pub(super) fn verdicts(nodes: &[Verdict], shares: &[Share], unicode: bool) -> String {
    // In a large cluster those that have nothing to do with it are left out.
    let mut shown: Vec<&Verdict> =
        nodes.iter().filter(|node| node.all > 0 || nodes.len() <= MOST_ROWS).collect();
    let is_used = |node: &Verdict| node.taken > 0;
    if shown.len() > MOST_ROWS {
        let unused = shown.iter().filter(|node| !is_used(node)).count();
        let used = shown.len() - unused;
        let mut room = MOST_ROWS.saturating_sub(used);
        shown.retain(|node| {
            let fits = is_used(node) || room > 0;
            room -= usize::from(!is_used(node) && room > 0);
            fits
        });
    }
    let rows: Vec<[String; 5]> = shown.iter().map(|node| row(node, shares, nodes, unicode)).collect();
    let mut text = String::new();
    if rows.is_empty() {
        return text;
    }
    let widest = |column: usize, title: &str| {
        rows.iter().map(|row| row[column].chars().count()).chain([title.chars().count()]).max().unwrap_or(0)
    };
    let (name, free, bar, taken) =
        (widest(0, "node"), widest(1, "free / all"), widest(2, "plan"), widest(3, ""));
    let _ = writeln!(text, "  {:name$}   {:free$}   plan", "node", "free / all");
    for [a, b, c, d, e] in &rows {
        let line = format!("  {a:name$}   {b:free$}   {c:bar$}   {d:>taken$}   {e}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if shown.len() < nodes.len() {
        let _ = writeln!(text, "  and {} more", counted(nodes.len() - shown.len(), "node"));
    }
    text
}

fn row(node: &Verdict, shares: &[Share], all: &[Verdict], unicode: bool) -> [String; 5] {
    let most = all.iter().map(|node| node.free).max().unwrap_or(0);
    let unit = most.div_ceil(WIDEST).max(1);
    let (full, empty, none) = if unicode { ("■", "□", "–") } else { ("#", ".", "-") };
    let squares = |count: u32| count.div_ceil(unit) as usize;
    let bar = full.repeat(squares(node.taken))
        + &empty.repeat(squares(node.free).saturating_sub(squares(node.taken)));
    let taken = if node.taken > 0 { node.taken.to_string() } else { none.to_owned() };
    let is_chief = shares.iter().any(|share| share.chief && share.node == node.node);
    let mut words: Vec<String> = Vec::new();
    if is_chief {
        words.push("chief".to_owned());
    }
    if node.taken == 0 {
        words.extend(node.reason.as_ref().map(ronde_placement::Reason::short));
    }
    if node.replicas > 1 {
        words.push(format!("time-sliced by {}", node.replicas));
    }
    [node.node.clone(), format!("{:>2} / {}", node.free, node.all), bar, taken, words.join("; ")]
}

fn summary(shares: &[Share]) -> String {
    let sizes: Vec<String> = shares.iter().map(|share| share.gpus.to_string()).collect();
    let nodes: Vec<&str> = shares.iter().map(|share| share.node.as_str()).collect();
    match shares.len() {
        0..=6 => format!("{} on {}", sizes.join(" + "), nodes.join(", ")),
        many => format!("{} to {} on {many} nodes", sizes.last().map_or("", String::as_str), sizes[0]),
    }
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use ronde_placement::{Node, Request, Snapshot};

    use super::*;

    fn cluster() -> Snapshot {
        let gpu = "nvidia.com/gpu";
        let nodes = vec![
            Node::new("node-1").with_gpus(gpu, 5, 8),
            Node::new("node-2").with_gpus(gpu, 3, 4),
            Node::new("node-3").with_gpus(gpu, 2, 8),
        ];
        Snapshot::new(0, Vec::new(), nodes).expect("a cluster")
    }

    #[test]
    fn shares_are_drawn_into_the_cluster_and_the_others_say_why_not() {
        let planned = ronde_placement::plan(&cluster(), &Request::new(6)).expect("a plan");
        let text = plan(&planned, true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  node     free / all   plan");
        assert_eq!(lines[1], "  node-1    5 / 8       ■■■■■   5");
        assert!(
            lines[2].starts_with("  node-2    3 / 4       □□□     –   6 = 5 + 1 needs one more GPU"),
            "{text}"
        );
        assert_eq!(lines[3], "  node-3    2 / 8       ■□      1   chief");
        assert!(lines[4].starts_with("6 GPUs on 2 nodes (policy pack)."), "{text}");
        assert!(plan(&planned, false).contains("#####"));
    }

    #[test]
    fn a_refusal_shows_the_cluster_as_well() {
        let refusal = ronde_placement::plan(&cluster(), &Request::new(11)).expect_err("too many");
        let text = verdicts(&refusal.nodes, &[], true);
        assert!(text.contains("node-1") && text.contains("□□□□□"), "{text}");
    }
}
