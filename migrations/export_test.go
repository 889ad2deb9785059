package migrations

// To returns options that stop at a version.
func (o Options) To(version int) Options {
	o.to = version
	return o
}

// Released is the version of the first release's schema.
const Released = released
