// Package figures is what the benchmarks of leases tell the report. They are a
// module of their own, for the sake of the libraries that they compare.
package figures

import "time"

// Leases is all that was measured on one Redis in one run.
type Leases struct {
	Ways     []Way
	Renewals []Renewals
}

// Way is one library or script.
type Way struct {
	Name  string
	Rates []float64 // pairs of acquire and release per second, one of each round
	// Handoffs are the times from a release to the return of the acquire that
	// waited for it; none where nothing waits.
	Handoffs []time.Duration
}

// Renewals is what it costs a process to hold many leases.
type Renewals struct {
	Name     string
	Leases   int
	Every    time.Duration // mean time between renewals of one lease
	During   time.Duration // how long it was watched
	CPU      time.Duration // of the process
	RedisCPU time.Duration
	Commands int64 // that clients sent to Redis
	Lost     int   // leases that ended meanwhile
	Bytes    uint64
}
