select wirefence.declare_resource(name, 'the test', advance => advance, preempt_after => wait), wirefence.seal(name, 1)
from unnest($1::text[], $2::text[], $3::text[]) as u (name, advance, wait)
