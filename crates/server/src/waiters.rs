//! Wakes callers that wait for a result in this process (issue: "woken, not only polled").
//!
//! A waiter registers *before* it reads the record again, so a result that lands in between wakes it. Results of
//! other processes are found by polling, with a growing pause.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use retrysafe_core::address::Address;
use tokio::sync::Notify;

/// Who waits for which address.
#[derive(Default)]
pub(crate) struct Waiters {
    by_address: Mutex<HashMap<Address, Weak<Notify>>>,
}

impl Waiters {
    /// A place to wait for `address`. All who wait for it at one time share it; the last to leave removes the entry.
    pub(crate) fn join(self: &Arc<Self>, address: &Address) -> Waiting {
        let mut map = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let notify = map.get(address).and_then(Weak::upgrade).unwrap_or_else(|| {
            let notify = Arc::new(Notify::new());
            map.insert(address.clone(), Arc::downgrade(&notify));
            notify
        });
        Waiting { notify: Some(notify), address: address.clone(), waiters: Arc::clone(self) }
    }

    /// Wakes everybody who waits for `address`.
    pub(crate) fn wake(&self, address: &Address) {
        let map = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        // The usual case, nobody waits anywhere, must not hash a key.
        if map.is_empty() {
            return;
        }
        if let Some(notify) = map.get(address).and_then(Weak::upgrade) {
            notify.notify_waiters();
        }
    }
}

/// A registered waiter. Giving up (dropping it) only leaves the list; it never ends somebody's claim (R2).
pub(crate) struct Waiting {
    notify: Option<Arc<Notify>>,
    address: Address,
    waiters: Arc<Waiters>,
}

impl Waiting {
    /// Resolves at the next wake after it was created. Create it, then read the record, then await it.
    pub(crate) fn woken(&self) -> impl Future<Output = ()> + '_ {
        // `notified` takes part from its creation on, not from its first poll, with `notify_waiters`.
        let notified = self.notify.as_ref().map(|notify| notify.notified());
        async move {
            if let Some(notified) = notified {
                notified.await;
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut map = self.waiters.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that nobody upgrades the weak reference between the count and the removal.
        let last = self.notify.take().is_some_and(|notify| Arc::strong_count(&notify) == 1);
        if last {
            map.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retrysafe_core::address::{Account, Key, Namespace};

    fn address() -> Address {
        Address::new(Namespace::new("n").unwrap(), Account::new(&["a"]).unwrap(), Key::trusted("k").unwrap())
    }

    #[tokio::test]
    async fn a_wake_between_registering_and_awaiting_is_not_lost() {
        let waiters = Arc::new(Waiters::default());
        let waiting = waiters.join(&address());
        let woken = waiting.woken();
        waiters.wake(&address());
        woken.await;
    }

    #[tokio::test]
    async fn the_last_to_leave_removes_the_entry_and_not_before() {
        let waiters = Arc::new(Waiters::default());
        let (first, second) = (waiters.join(&address()), waiters.join(&address()));
        drop(first);
        assert_eq!(waiters.by_address.lock().unwrap().len(), 1);
        drop(second);
        assert!(waiters.by_address.lock().unwrap().is_empty());
    }
}
