//! The shape of a plan: its steps, in their order, and what may be done again.
//!
//! The shape is stored with each request as one line of text. A deployment that changes it meets old requests with a plan
//! that cannot know what their recovery points mean, so a shape that is not the same to the letter is refused to a person.

use std::{fmt, sync::Arc, time::Duration};

/// The most steps of a plan.
pub const STEPS_MAX: usize = 64;
/// The longest name of a plan or step, and of a member of a list.
const NAME_MAX: usize = 64;
const MEMBER_MAX: usize = 128;
/// Between the name of a list of steps and its member.
const MEMBER_MARK: char = '/';

/// The steps of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    name: Arc<str>,
    steps: Vec<Step>,
}

/// One step of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Unique in its plan.
    pub name: Arc<str>,
    /// What it does.
    pub kind: Kind,
    /// It stands for any number of like steps, each named by its member: `notify/driver`.
    pub list: bool,
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Local work, committed with its recovery point.
    Phase,
    /// One foreign mutation.
    External(External),
}

/// What may be done about a foreign call whose result nobody wrote down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct External {
    /// The provider can be asked by the downstream key what became of it.
    pub asks: bool,
    /// Asking also closes the door: after "absent" the first call can no longer arrive (protocol 22).
    pub fences: bool,
    /// The provider de-duplicates by the downstream key, so the stored bytes may be sent again.
    pub resend: Option<Resend>,
}

/// For how long a provider de-duplicates (protocol 23).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resend {
    /// How long the provider keeps a key, from its first use on.
    pub window: Duration,
    /// How much earlier we stop: two clocks, and a call that takes its time.
    pub margin: Duration,
}

impl External {
    /// Nobody can be asked and nothing may be sent again: a lost result is for a person.
    pub const NEVER_AGAIN: External = External { asks: false, fences: false, resend: None };
    /// The provider can be asked by the downstream key.
    pub const ASK: External = External { asks: true, ..External::NEVER_AGAIN };

    /// The provider de-duplicates by the downstream key, for `window`; we stop a `margin` earlier.
    pub const fn resend(window: Duration, margin: Duration) -> External {
        External { resend: Some(Resend { window, margin }), ..External::NEVER_AGAIN }
    }

    /// As it is, and the provider can be asked first.
    pub const fn asking(self) -> External {
        External { asks: true, ..self }
    }
}

impl Resend {
    /// Whether a call that was first meant to be sent `age` ago may be sent again.
    pub fn permits(&self, age: Duration) -> bool {
        age < self.window.saturating_sub(self.margin)
    }
}

impl Shape {
    /// A plan of no steps.
    ///
    /// # Errors
    /// [`BadName`]: not 1 to 64 of `a-z 0-9 - _`.
    pub fn new(name: &str) -> Result<Self, BadName> {
        Ok(Self { name: plain(name)?, steps: Vec::new() })
    }

    /// And then local work.
    ///
    /// # Errors
    /// [`BadName`]: the name is malformed or taken, or the plan is full.
    pub fn phase(self, name: &str) -> Result<Self, BadName> {
        self.with(name, Kind::Phase, false)
    }

    /// And then one foreign mutation.
    ///
    /// # Errors
    /// As [`Shape::phase`].
    pub fn external(self, name: &str, external: External) -> Result<Self, BadName> {
        self.with(name, Kind::External(external), false)
    }

    /// And then one foreign mutation for each member of a list that is known by then.
    ///
    /// # Errors
    /// As [`Shape::phase`].
    pub fn externals(self, name: &str, external: External) -> Result<Self, BadName> {
        self.with(name, Kind::External(external), true)
    }

    fn with(mut self, name: &str, kind: Kind, list: bool) -> Result<Self, BadName> {
        let name = plain(name)?;
        if self.steps.len() == STEPS_MAX || self.steps.iter().any(|step| step.name == name) {
            return Err(BadName);
        }
        self.steps.push(Step { name, kind, list });
        Ok(self)
    }

    /// What the plan is called.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The steps, in their order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Position and step that `name` belongs to.
    pub fn find(&self, name: &StepName) -> Option<(usize, &Step)> {
        let list = name.member().is_some();
        self.steps.iter().enumerate().find(|(_, step)| *step.name == *name.base() && step.list == list)
    }

    /// The shape as one line: what is stored, compared to the letter, and shown to a person when it differs.
    pub fn text(&self) -> Arc<str> {
        self.to_string().into()
    }

    /// The name of the plan in a stored line.
    pub fn name_in(text: &str) -> &str {
        text.split(':').next().unwrap_or(text)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name)?;
        for step in &self.steps {
            write!(f, " {}{}=", step.name, if step.list { "[]" } else { "" })?;
            match step.kind {
                Kind::Phase => f.write_str("phase")?,
                Kind::External(External { asks, fences, resend }) => {
                    f.write_str("external")?;
                    if asks {
                        f.write_str(if fences { "+ask+fence" } else { "+ask" })?;
                    }
                    if let Some(Resend { window, margin }) = resend {
                        write!(f, "+resend({}s-{}s)", window.as_secs(), margin.as_secs())?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The name of a step, or of one member of a list of steps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepName(Arc<str>);

impl StepName {
    /// The name of a step: 1 to 64 of `a-z 0-9 - _`.
    ///
    /// # Errors
    /// [`BadName`].
    pub fn new(name: &str) -> Result<Self, BadName> {
        plain(name).map(StepName)
    }

    /// The name of a member of a list: the list's name and 1 to 128 visible ASCII characters. Members are named by what
    /// they are, not by their position, so that a list that grew meanwhile leaves them who they are.
    ///
    /// # Errors
    /// [`BadName`].
    pub fn of_member(list: &str, member: &str) -> Result<Self, BadName> {
        let fits =
            (1..=MEMBER_MAX).contains(&member.len()) && member.bytes().all(|byte| byte.is_ascii_graphic());
        match fits {
            true => Ok(Self(format!("{}{MEMBER_MARK}{member}", plain(list)?).into())),
            false => Err(BadName),
        }
    }

    /// The name that [`StepName::as_str`] gave.
    ///
    /// # Errors
    /// [`BadName`].
    pub fn from_stored(text: &str) -> Result<Self, BadName> {
        match text.split_once(MEMBER_MARK) {
            Some((list, member)) => Self::of_member(list, member),
            None => Self::new(text),
        }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn base(&self) -> &str {
        self.0.split(MEMBER_MARK).next().unwrap_or(&self.0)
    }

    fn member(&self) -> Option<&str> {
        self.0.split_once(MEMBER_MARK).map(|(_, member)| member)
    }
}

impl fmt::Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A name that a plan or step cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "plans and steps are named by 1 to 64 of `a-z 0-9 - _`, each step once, up to 64 steps in a plan; members of a list by 1 to \
     128 visible ASCII characters"
)]
pub struct BadName;

fn plain(name: &str) -> Result<Arc<str>, BadName> {
    let fits = (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'));
    if fits { Ok(name.into()) } else { Err(BadName) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_23_a_call_is_not_sent_again_in_the_margin_before_the_providers_window_ends() {
        let resend = Resend { window: Duration::from_secs(100), margin: Duration::from_secs(10) };
        assert!(resend.permits(Duration::from_millis(89_999)));
        assert!(!resend.permits(Duration::from_secs(90)));
        // A margin as long as the window permits nothing, and does not wrap.
        assert!(!Resend { margin: Duration::MAX, ..resend }.permits(Duration::ZERO));
    }

    #[test]
    fn every_difference_of_two_plans_shows_in_their_text() {
        let day = Duration::from_secs(86_400);
        let hour = Duration::from_secs(3_600);
        let externals = [
            External::NEVER_AGAIN,
            External::ASK,
            External { fences: true, ..External::ASK },
            External::resend(day, hour),
            External::resend(day, day),
            External::resend(day, hour).asking(),
        ];
        let base = || Shape::new("rides").unwrap();
        let mut shapes = vec![base(), Shape::new("trips").unwrap(), base().phase("a").unwrap()];
        shapes.push(base().phase("a").unwrap().phase("b").unwrap());
        shapes.push(base().phase("b").unwrap().phase("a").unwrap());
        for external in externals {
            shapes.push(base().external("a", external).unwrap());
            shapes.push(base().externals("a", external).unwrap());
        }
        let texts: std::collections::HashSet<_> = shapes.iter().map(Shape::text).collect();
        assert_eq!(texts.len(), shapes.len());
        assert!(texts.iter().all(|text| ["rides", "trips"].contains(&Shape::name_in(text))));
    }

    #[test]
    fn a_member_of_a_list_is_no_step_and_a_step_is_no_list() {
        let shape = Shape::new("rides").unwrap().phase("one").unwrap();
        let shape = shape.externals("many", External::ASK).unwrap();
        let member = StepName::of_member("many", "driver/1").unwrap();
        assert_eq!(StepName::from_stored(member.as_str()), Ok(member.clone()));
        assert_eq!(shape.find(&member).map(|(at, _)| at), Some(1));
        for other in ["many", "one/x", "none"] {
            assert_eq!(shape.find(&StepName::from_stored(other).unwrap()), None, "{other}");
        }
    }

    #[test]
    fn names_are_bounded_and_unique() {
        for bad in ["", "A", "a b", "a/b", "a:b", &"a".repeat(65)] {
            assert_eq!(StepName::new(bad), Err(BadName), "{bad:?}");
        }
        assert_eq!(StepName::of_member("many", ""), Err(BadName));
        assert!(Shape::new("rides").unwrap().phase("a").unwrap().external("a", External::ASK).is_err());
    }
}
