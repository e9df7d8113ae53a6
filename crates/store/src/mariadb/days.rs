//! What was counted day by day. See [`crate::sql::days`].

use retrysafe_core::orphans::Day;

use super::{Shared, calls::Again, fault::Does};
use crate::{
    DAYS_READ, StoreError,
    sql::{
        Driver, Statement,
        days::{COUNTING, days, row},
    },
};

impl<D: Driver> Shared<D> {
    pub(super) async fn count_day(&self, day: Day) -> Result<(), StoreError> {
        let statement = Statement::new(&self.texts.count_day, row(day));
        self.ask(statement, COUNTING, Does::Write, Again::Unsafe).await.map(drop)
    }

    pub(super) async fn days(&self) -> Result<Vec<Day>, StoreError> {
        let statement = Statement::new(&self.texts.days, vec![DAYS_READ.into(), DAYS_READ.into()]);
        days(&self.ask(statement, COUNTING, Does::Read, Again::Safe).await?)
    }
}
