//! What was counted day by day. See [`crate::sql::days`].

use retrysafe_core::orphans::Day;

use super::{fault::Does, inner::Inner};
use crate::{
    DAYS_READ, StoreError,
    sql::{
        Driver, Statement,
        days::{COUNTING, days, row},
    },
};

impl<D: Driver> Inner<D> {
    pub(super) async fn count_day(&self, day: Day) -> Result<(), StoreError> {
        self.one(Statement::new(&self.texts.count_day, row(day)), COUNTING, Does::Write).await.map(drop)
    }

    pub(super) async fn days(&self) -> Result<Vec<Day>, StoreError> {
        days(&self.one(Statement::new(&self.texts.days, vec![DAYS_READ.into()]), COUNTING, Does::Read).await?)
    }
}
