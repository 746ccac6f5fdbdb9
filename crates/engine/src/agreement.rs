//! What a rank is about to do, compared with the others before any byte moves.
//!
//! An [`Offer`] fits the cache line of a one-phase meeting, so comparing costs well under a microsecond inside a host.

use ronde_collective::types::{DType, ReduceOp};
use ronde_rendezvous::Ranks;

/// Kinds of collectives.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Allreduce,
    Allgather,
    Broadcast,
    Reducescatter,
    Alltoall,
    Barrier,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Allreduce,
        Kind::Allgather,
        Kind::Broadcast,
        Kind::Reducescatter,
        Kind::Alltoall,
        Kind::Barrier,
    ];
}

/// Length of an offer on the wire.
pub(crate) const LENGTH: usize = 24;

/// One rank's side of a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Offer {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    /// Root of a broadcast, else 0.
    pub(crate) root: u32,
    /// What must be equal: elements of a tensor, or bytes of a row where rows may differ in number.
    pub(crate) extent: u64,
    /// Product of both factors' bits: enough to tell different ones apart.
    pub(crate) factors: u64,
}

impl Offer {
    pub(crate) fn new(kind: Kind, dtype: DType, extent: usize) -> Offer {
        Offer { kind, dtype, op: ReduceOp::Sum, root: 0, extent: extent as u64, factors: 0 }
    }

    pub(crate) fn reducing(self, op: ReduceOp, prescale: f64, postscale: f64) -> Offer {
        Offer { op, factors: prescale.to_bits().rotate_left(32) ^ postscale.to_bits(), ..self }
    }

    pub(crate) fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..3].copy_from_slice(&[self.kind as u8, self.dtype as u8, self.op as u8]);
        bytes[4..8].copy_from_slice(&self.root.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.extent.to_le_bytes());
        bytes[16..].copy_from_slice(&self.factors.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Offer> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Offer {
            kind: *Kind::ALL.get(usize::from(*bytes.first()?))?,
            dtype: DType::from_code(*bytes.get(1)?)?,
            op: ReduceOp::from_code(*bytes.get(2)?)?,
            root: u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?),
            extent: word(8)?,
            factors: word(16)?,
        })
    }

    /// What this rank is about to do, in words.
    fn describe(&self) -> String {
        let Offer { dtype, extent, .. } = self;
        match self.kind {
            Kind::Allreduce => format!("allreduce ({:?}) of {extent} elements of {dtype}", self.op),
            Kind::Reducescatter => format!("reducescatter ({:?}) of {extent} elements of {dtype}", self.op),
            Kind::Broadcast => format!("broadcast of {extent} elements of {dtype} from rank {}", self.root),
            Kind::Allgather => format!("allgather of rows of {extent} bytes of {dtype}"),
            Kind::Alltoall => format!("alltoall of rows of {extent} bytes of {dtype}"),
            Kind::Barrier => "barrier".to_owned(),
        }
    }
}

/// The difference between everybody's offers, rank by rank.
pub(crate) fn explain(offers: &[Vec<u8>]) -> String {
    let decoded: Vec<Option<Offer>> = offers.iter().map(|bytes| Offer::decode(bytes)).collect();
    let of =
        |rank: usize| decoded[rank].map_or_else(|| "something unknown".to_owned(), |offer| offer.describe());
    let mut sides: Vec<(String, Vec<usize>)> = Vec::new();
    for rank in 0..offers.len() {
        let text = of(rank);
        match sides.iter_mut().find(|(side, _)| *side == text) {
            Some((_, ranks)) => ranks.push(rank),
            None => sides.push((text, vec![rank])),
        }
    }
    if let [(text, _)] = sides.as_slice() {
        return format!("{text}: prescale or postscale factors differ between ranks");
    }
    let kind = decoded.first().copied().flatten().map(|offer| offer.kind);
    let same_kind = decoded.iter().all(|offer| offer.map(|offer| offer.kind) == kind);
    let head = match kind {
        Some(kind) if same_kind => format!("{} differs between ranks", format!("{kind:?}").to_lowercase()),
        _ => "ranks called different operations".to_owned(),
    };
    let lines = sides.into_iter().map(|(text, ranks)| format!("\n  {}: {text}", Ranks::new(ranks)));
    lines.fold(head, |text, line| text + &line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allreduce(elements: usize) -> Offer {
        Offer::new(Kind::Allreduce, DType::F32, elements).reducing(ReduceOp::Sum, 1.0, 1.0)
    }

    #[test]
    fn offers_survive_the_wire() {
        for kind in Kind::ALL {
            for op in ReduceOp::ALL {
                let offer =
                    Offer { root: 7, ..Offer::new(kind, DType::BF16, 1 << 40).reducing(op, 0.5, 3.0) };
                assert_eq!(Offer::decode(&offer.encode()), Some(offer));
            }
        }
        assert_eq!(Offer::decode(&[255; LENGTH]), None);
        assert_eq!(Offer::decode(&[0; 3]), None);
    }

    #[test]
    fn both_sides_are_named_with_their_ranks() {
        let mut offers = vec![allreduce(1280).encode().to_vec(); 3];
        offers.push(allreduce(1536).encode().to_vec());
        assert_eq!(
            explain(&offers),
            "allreduce differs between ranks\
             \n  ranks 0-2: allreduce (Sum) of 1280 elements of float32\
             \n  rank 3: allreduce (Sum) of 1536 elements of float32"
        );
    }

    #[test]
    fn different_operations_and_factors_are_told_apart() {
        let barrier = Offer::new(Kind::Barrier, DType::U8, 0).encode().to_vec();
        let text = explain(&[allreduce(1).encode().to_vec(), barrier]);
        assert!(text.starts_with("ranks called different operations"), "{text}");
        let halved = allreduce(1).reducing(ReduceOp::Sum, 0.5, 1.0).encode().to_vec();
        let text = explain(&[allreduce(1).encode().to_vec(), halved]);
        assert!(text.contains("factors differ"), "{text}");
    }
}
