package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/lockclient/finding"
)

// Witness is whoever tells the proxy which server leads.
type Witness struct {
	// Leads asks about the server at an index of Servers.
	Leads func(ctx context.Context, server int) (leads bool, address netip.Addr, err error)
	// Close ends its connections.
	Close func() error
	// Servers are those of the proxy's upstream.
	Servers []string
	// Bound is how long a confirmation counts.
	Bound time.Duration
}

// witnessChecks ask the witness, if one is named.
func (in *Input) witnessChecks() []Check {
	if in.Witness == nil {
		return nil
	}
	return []Check{{"failover.witness", nil, checkWitness}}
}

func checkWitness(ctx context.Context, in *Input) ([]Finding, error) {
	w := in.Witness
	leads, leaders, errs := make([]bool, len(w.Servers)), make([]netip.Addr, len(w.Servers)), make([]error, len(w.Servers))
	var asking sync.WaitGroup
	for i := range w.Servers {
		asking.Go(func() {
			within, cancel := context.WithTimeout(ctx, min(w.Bound, witnessTime))
			defer cancel()
			leads[i], leaders[i], errs[i] = w.Leads(within, i)
		})
	}
	asking.Wait()
	if leads[0] && leaders[0].IsValid() && in.Upstream != nil { // then there is one server
		return in.compareAddress(ctx, leaders[0]), nil
	}
	return judgeWitness(w, leads, errs), nil
}

// compareAddress compares the address of the server that the upstream leads to with the leader's.
func (in *Input) compareAddress(ctx context.Context, leader netip.Addr) []Finding {
	server := in.Witness.Servers[0]
	var address netip.Addr // none by a Unix socket
	conn, err := pgx.ConnectConfig(ctx, in.Upstream.Copy())
	if err == nil {
		defer conn.Close(context.WithoutCancel(ctx))
		err = conn.QueryRow(ctx, "SELECT pg_catalog.inet_server_addr()").Scan(&address)
	}
	switch {
	case err != nil:
		return []Finding{{Grade: Note, Says: fmt.Sprintf("the witness confirms the server with the address %v, and %s can't be asked for its own: %v", leader, server, err)}}
	case address != leader:
		return []Finding{{Grade: Problem, Says: fmt.Sprintf("the witness confirms the server with the address %v, and %s has %v", leader, server, address), Means: noneConfirmed,
			Remedy: []string{"name the Service of the primary itself in WIREFENCE_UPSTREAM, without a pooler or a mesh between"}}}
	}
	return finding.Fine("the witness confirms %s, whose address is %v, as the leader; a confirmation counts for %v", server, leader, in.Witness.Bound)
}

// witnessTime bounds a question to the witness, within the time of a check.
const witnessTime = 5 * time.Second

// noneConfirmed is what it means that the witness confirms no server of the proxy's.
const noneConfirmed = "The proxy ends sessions with a fence on a server that isn't confirmed, so no fenced session can work."

func judgeWitness(w *Witness, leads []bool, errs []error) (found []Finding) {
	var leaders []string
	for i, server := range w.Servers {
		switch {
		case errs[i] != nil:
			found = append(found, Finding{Grade: Note, Says: "the witness can't be asked about " + server + ": " + errs[i].Error(), Means: "If that server leads, sessions with a fence end there."})
		case leads[i]:
			leaders = append(leaders, server)
		}
	}
	switch len(leaders) {
	case 0:
		return append(found, Finding{Grade: Problem, Says: "the witness confirms none of " + strings.Join(w.Servers, ", ") + " as the leader", Means: noneConfirmed,
			Remedy: []string{"see that the witness answers from here, and that WIREFENCE_WITNESS has its members in the order of WIREFENCE_UPSTREAM, or names=… with their names"}})
	case 1:
		return append(found, finding.Fine("the witness confirms %s as the leader; a confirmation counts for %v", leaders[0], w.Bound)...)
	}
	return append(found, Finding{Grade: Problem, Says: fmt.Sprintf("the witness confirms %d servers as leaders: %s", len(leaders), strings.Join(leaders, ", ")),
		Means: "Sessions with a fence go on at a server that may have been superseded.", Remedy: []string{"see that WIREFENCE_WITNESS names a member of one cluster for each server"}})
}
