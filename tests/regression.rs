//! One test per defect that was found and fixed.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;
mod scene;

use scene::Scene;

/// An option between the images and the destination made the last image the destination.
#[test]
fn an_option_may_stand_before_the_destination() {
    let scene = Scene::new(1 << 20);
    scene.send(&scene.local().args(["--streams", "2"])).done();
    scene.arrived();
}
