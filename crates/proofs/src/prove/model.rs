//! recovery.3: the model keeps every promise to a stated depth, and each mutant of the protocol breaks one.

use anyhow::Result;
use retrysafe_sim::model::{Bounds, Found, Mutant, Provider, search};

use super::Scale;

/// The least number of worlds that the searches of the sound protocol have to reach.
const WORLDS_MIN: usize = 1_000_000;

/// Few actors, and the longest stories.
const DEEP: Bounds = Bounds { depth: 19, worlds: 20_000_000, clients: 1, workers: 1, sends: 2, faults: 1 };

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let depth = u32::try_from(scale.of(14, 11))?;
    let faults = if scale.quick() { 1 } else { 2 };
    let bounds = Bounds { depth, faults, ..Bounds::default() };
    let mut holds = true;
    let mut worlds = 0;
    let mut seconds = 0.0;
    let mut seen: Vec<(&str, usize)> = Vec::new();
    for provider in [Provider::Asked, Provider::Deduplicates, Provider::Plain] {
        let wide = search(provider, None, bounds);
        worlds += wide.worlds;
        seconds += wide.took.as_secs_f64();
        tell(&format!("3 clients, 2 workers, provider: {}", name(provider)), &wide);
        holds &= wide.depth == bounds.depth;
        let mut all = vec![wide];
        // What takes many steps is out of reach with everybody in it, and of the quick form.
        if !scale.quick() {
            let deep = search(provider, None, DEEP);
            tell(&format!("1 client that comes again, 1 worker, provider: {}", name(provider)), &deep);
            all.push(deep);
        }
        for found in all {
            holds &= found.violation.is_none();
            if let Some(story) = &found.violation {
                println!("{story}");
            }
            for (at, (name, count)) in found.sometimes.into_iter().enumerate() {
                match seen.get_mut(at) {
                    Some((_, sum)) => *sum += count,
                    None => seen.push((name, count)),
                }
            }
        }
    }
    let reached = seen.iter().filter(|(_, count)| *count > 0).count();
    for (name, count) in &seen {
        println!("  sometimes: {name}: {count} worlds");
    }
    holds &= scale.quick() || reached == seen.len();
    let mut caught = 0;
    for mutant in Mutant::ALL {
        // The two whose stories are longest are left to the full proof.
        if scale.quick() && matches!(mutant, Mutant::WindowFromTheClaim | Mutant::AbsenceIsFailure) {
            continue;
        }
        let found = search(mutant.provider(), Some(mutant), mutant.bounds());
        tell(&format!("mutant: {}", mutant.name()), &found);
        match &found.violation {
            Some(story) => {
                caught += 1;
                println!("{story}");
            }
            None => {
                holds = false;
                println!("  NOT CAUGHT");
            }
        }
    }
    holds &= scale.quick() || worlds >= WORLDS_MIN;
    println!(
        "{worlds} worlds in {seconds:.1} s, all of them to depth {depth}; {reached} of {} kinds of world were reached; {caught} \
         mutants caught",
        seen.len()
    );
    Ok(holds)
}

fn name(provider: Provider) -> &'static str {
    match provider {
        Provider::Asked => "can be asked",
        Provider::Deduplicates => "de-duplicates by the key",
        Provider::Plain => "neither",
    }
}

fn tell(what: &str, found: &Found) {
    println!("  {what}: {} worlds, depth {}, {:.1} s", found.worlds, found.depth, found.took.as_secs_f64());
}
