//! The requests of this rank that are being negotiated: a ticket is the negotiation's word for one of them.

use std::sync::Arc;

use crate::operation::Operation;

/// An operation and which of its items is meant.
pub(crate) type Holder = (Arc<Operation>, usize);

/// Tickets are places in a list, and are used again.
#[derive(Default)]
pub(crate) struct Tickets {
    places: Vec<Option<Holder>>,
    free: Vec<usize>,
}

impl Tickets {
    pub(crate) fn issue(&mut self, holder: Holder) -> u64 {
        let place = self.free.pop().unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(Some(holder));
        } else {
            self.places[place] = Some(holder);
        }
        place as u64
    }

    pub(crate) fn redeem(&mut self, ticket: u64) -> Option<Holder> {
        let place = usize::try_from(ticket).ok()?;
        let holder = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some(holder)
    }

    /// Redeems all tickets of an operation.
    pub(crate) fn take_back(&mut self, operation: &Arc<Operation>) {
        for (place, holder) in self.places.iter_mut().enumerate() {
            if holder.take_if(|(held, _)| Arc::ptr_eq(held, operation)).is_some() {
                self.free.push(place);
            }
        }
    }

    pub(crate) fn redeem_all(&mut self) -> Vec<Holder> {
        self.free.clear();
        self.places.drain(..).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::negotiation::Kind;
    use crate::operation::Submission;

    #[test]
    fn a_ticket_is_redeemed_once_and_its_number_used_again() {
        let operation = Arc::new(Operation::new(Submission::new(Kind::Barrier, "b", Vec::new())));
        let mut tickets = Tickets::default();
        let (first, second) = (tickets.issue((operation.clone(), 0)), tickets.issue((operation.clone(), 1)));
        assert_eq!(tickets.redeem(first).map(|holder| holder.1), Some(0));
        assert!(tickets.redeem(first).is_none());
        assert_eq!(tickets.issue((operation, 2)), first);
        assert_ne!(first, second);
        assert_eq!(tickets.redeem_all().len(), 2);
    }

    #[test]
    fn all_tickets_of_an_operation_can_be_taken_back() {
        let operation =
            |name: &str| Arc::new(Operation::new(Submission::new(Kind::Barrier, name, Vec::new())));
        let (refused, other) = (operation("refused"), operation("other"));
        let mut tickets = Tickets::default();
        let issued = [(&refused, 0), (&other, 0), (&refused, 1)]
            .map(|(operation, index)| tickets.issue((operation.clone(), index)));
        tickets.take_back(&refused);
        assert!(tickets.redeem(issued[0]).is_none());
        assert!(tickets.redeem(issued[2]).is_none());
        assert!(tickets.redeem(issued[1]).is_some_and(|(held, _)| Arc::ptr_eq(&held, &other)));
    }
}
