package main

import (
	"fmt"

	"github.com/wirefence/wirefence/internal/witness"
	"github.com/wirefence/wirefence/proxy"
)

// openWitness makes the witness of WIREFENCE_WITNESS, and tells the servers that it is asked about.
// Without the setting it returns nil. It doesn't connect yet.
func openWitness(url, upstream string) (w *witness.Witness, servers []string, err error) {
	if url == "" {
		return nil, nil, nil
	}
	servers, err = proxy.UpstreamHosts(upstream)
	if err == nil {
		w, err = witness.Open(url, servers)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("WIREFENCE_WITNESS: %w", err)
	}
	return w, servers, nil
}
