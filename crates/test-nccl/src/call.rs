//! What is asked of a communicator, and what of it the ranks have to agree on.
//!
//! A [`Request`] is one call with this rank's own addresses. What another rank must have asked as well, at the same place
//! in its order, is an [`Event`]: a collective, or all that two ranks send each other in one group.

use std::fmt;

use ronde_collective::kernel::Fold;
use ronde_collective::types::DType;

/// NCCL's number of an element type, as ours. `None` for those that our kernels do not know.
pub(crate) fn element(number: i32) -> Option<DType> {
    Some(match number {
        0 => DType::I8,
        1 => DType::U8,
        2 => DType::I32,
        4 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        9 => DType::BF16,
        _ => return None,
    })
}

/// How contributions become one result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reduction {
    /// What is done to elements.
    pub(crate) fold: Fold,
    /// What each is multiplied with before.
    pub(crate) factor: f64,
    /// Whether the sum is divided by the number of ranks.
    pub(crate) average: bool,
}

impl Reduction {
    /// NCCL's number of a built-in one.
    pub(crate) fn built_in(number: i32) -> Option<Reduction> {
        let fold = match number {
            0 | 4 => Fold::Sum,
            1 => Fold::Product,
            2 => Fold::Max,
            3 => Fold::Min,
            _ => return None,
        };
        Some(Reduction { fold, factor: 1.0, average: number == 4 })
    }

    /// A sum whose contributions are multiplied first.
    pub(crate) fn scaled_sum(factor: f64) -> Reduction {
        Reduction { fold: Fold::Sum, factor, average: false }
    }

    /// Whether a plain fold does it.
    pub(crate) fn is_plain(&self) -> bool {
        self.factor == 1.0 && !self.average
    }
}

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
}

impl Kind {
    const ALL: [Kind; 5] =
        [Kind::AllReduce, Kind::Reduce, Kind::Broadcast, Kind::AllGather, Kind::ReduceScatter];
}

/// A collective, without anybody's addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Collective {
    pub(crate) kind: Kind,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
    /// For those that reduce.
    pub(crate) reduction: Option<Reduction>,
    /// For those that have one.
    pub(crate) root: usize,
}

/// One call, with this rank's addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    /// Everybody takes part.
    Collective { what: Collective, src: u64, dst: u64 },
    /// For one rank.
    Send { src: u64, bytes: usize, peer: usize },
    /// From one rank.
    Recv { dst: u64, bytes: usize, peer: usize },
}

/// What one rank sends another in one group: how many parcels, of how many bytes, and a digest of their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Parcels {
    number: u64,
    bytes: u64,
    digest: u64,
}

impl Parcels {
    /// Adds one of this size.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.number += 1;
        self.bytes += bytes as u64;
        // Any mixing will do that depends on the order.
        self.digest = (self.digest ^ bytes as u64).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }
}

/// What two ranks have to agree on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Event {
    /// A collective of all ranks.
    Collective(Collective),
    /// All that this rank sends the other, and gets from it, in one group.
    Exchange { sent: Parcels, received: Parcels },
}

const EXCHANGE: u64 = u64::MAX;

impl Event {
    /// Words of an encoded event.
    pub(crate) const WORDS: usize = 8;

    /// The event as the other rank must see it.
    pub(crate) fn mirrored(self) -> Event {
        match self {
            Event::Collective(_) => self,
            Event::Exchange { sent, received } => Event::Exchange { sent: received, received: sent },
        }
    }

    pub(crate) fn encode(&self) -> [u64; Event::WORDS] {
        match *self {
            Event::Collective(Collective { kind, count, dtype, reduction, root }) => {
                let (fold, factor, average) = reduction
                    .map_or((0, 0, 0), |r| (1 + r.fold as u64, r.factor.to_bits(), r.average.into()));
                [kind as u64, count as u64, dtype as u64, fold, factor, average, root as u64, 0]
            }
            Event::Exchange { sent, received } => [
                EXCHANGE,
                sent.number,
                sent.bytes,
                sent.digest,
                received.number,
                received.bytes,
                received.digest,
                0,
            ],
        }
    }

    /// `None` for what no rank encoded.
    pub(crate) fn decode(words: [u64; Event::WORDS]) -> Option<Event> {
        let [first, a, b, c, d, e, f, _] = words;
        if first == EXCHANGE {
            let sent = Parcels { number: a, bytes: b, digest: c };
            return Some(Event::Exchange { sent, received: Parcels { number: d, bytes: e, digest: f } });
        }
        let folds = [Fold::Sum, Fold::Min, Fold::Max, Fold::Product];
        let fold = folds.into_iter().find(|&fold| 1 + fold as u64 == c);
        let reduction = fold.map(|fold| Reduction { fold, factor: f64::from_bits(d), average: e != 0 });
        Some(Event::Collective(Collective {
            kind: Kind::ALL.into_iter().find(|&kind| kind as u64 == first)?,
            count: usize::try_from(a).ok()?,
            dtype: DType::from_code(u8::try_from(b).ok()?)?,
            reduction,
            root: usize::try_from(f).ok()?,
        }))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Collective(Collective { kind, count, dtype, reduction, root }) => {
                write!(f, "nccl{kind:?} of {count} {dtype}")?;
                if let Some(Reduction { fold, factor, average }) = reduction {
                    let name = if *average { "average".into() } else { fold.to_string() };
                    write!(f, ", {name}")?;
                    if *factor != 1.0 {
                        write!(f, " times {factor}")?;
                    }
                }
                if matches!(kind, Kind::Reduce | Kind::Broadcast) {
                    write!(f, ", root {root}")
                } else {
                    Ok(())
                }
            }
            Event::Exchange { sent, received } => write!(
                f,
                "an exchange ({} sent with {} bytes, {} received with {} bytes)",
                sent.number, sent.bytes, received.number, received.bytes
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_back_from_their_words() {
        let mut parcels = Parcels::default();
        parcels.add(100);
        parcels.add(7);
        let events = Kind::ALL.into_iter().flat_map(|kind| {
            (0..6).map(move |op| {
                let reduction = Reduction::built_in(op);
                Event::Collective(Collective { kind, count: 9, dtype: DType::BF16, reduction, root: 2 })
            })
        });
        let exchange = Event::Exchange { sent: parcels, received: Parcels::default() };
        for event in events.chain([exchange]) {
            assert_eq!(Event::decode(event.encode()), Some(event));
        }
        assert_eq!(Event::decode([77; Event::WORDS]), None);
        assert_ne!(exchange.mirrored(), exchange);
        assert_eq!(exchange.mirrored().mirrored(), exchange);
    }

    #[test]
    fn texts_name_all_that_ranks_may_differ_in() {
        let reduction = Reduction::built_in(4);
        let reduce = Collective { kind: Kind::Reduce, count: 5, dtype: DType::F32, reduction, root: 1 };
        assert_eq!(Event::Collective(reduce).to_string(), "ncclReduce of 5 float32, average, root 1");
        let scaled =
            Collective { kind: Kind::AllReduce, reduction: Some(Reduction::scaled_sum(0.5)), ..reduce };
        assert_eq!(Event::Collective(scaled).to_string(), "ncclAllReduce of 5 float32, sum times 0.5");
    }
}
