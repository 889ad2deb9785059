// Package leaderelection follows the Leases of Kubernetes by which an application elects its leader,
// as client-go's package of that name: it seals each election of the application in PostgreSQL, and
// keeps the lease as long as the application keeps the Lease.
//
// Of this module it imports fence, lockclient, internal/adopt, internal/apiserver and
// internal/quietlog.
package leaderelection

import (
	"cmp"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/apiserver"
	"github.com/wirefence/wirefence/lockclient"
)

// Source is the source of the tokens that Leases count.
const Source fence.Source = "kubernetes-lease"

// Options are those of a Follower.
type Options struct {
	// Client asks the API server. Required.
	Client *apiserver.Client
	// Locks are the Leases, with the resources whose leases follow them. Required.
	Locks adopt.From
	// Owner is what the identities of this sidecar's application begin with, and no other's.
	// Required.
	Owner string
	// Sealers record each grant, all of them before it counts. Required.
	Sealers []lockclient.Sealer
	// Book gets the leases. Required.
	Book *adopt.Book
	// Logger is for Leases that can't be followed, and grants that can't be sealed. Default: none.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer

	// SealTimeout limits a try to seal. Default 15s.
	SealTimeout time.Duration
	// Retry is the pause behind a failure. Default 1s.
	Retry time.Duration
	// Compare is how often a grant is compared with the last one in the databases. Default 5s.
	Compare time.Duration
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.SealTimeout, o.Retry = cmp.Or(o.SealTimeout, 15*time.Second), cmp.Or(o.Retry, time.Second)
	o.Compare = cmp.Or(o.Compare, 5*time.Second)
	return o
}

// Validate returns what is missing in the options.
func (o Options) Validate() error {
	if o.Client == nil || o.Book == nil || o.Owner == "" || len(o.Locks) == 0 || len(o.Sealers) == 0 {
		return errors.New("options Client, Book, Owner, Locks and Sealers are required")
	}
	return nil
}

// random is the part of an identity that is new in each process: a UUID, or as many digits of another
// random number.
var random = regexp.MustCompile(`^-*([0-9a-fA-F]-*){16,}$`)

// isOwn reports whether an identity is one of the owner's application. Then new says whether it is
// another one in each process: OWNER_UUID, as client-go's users write it.
func isOwn(identity, owner string) (own, new bool) {
	if identity == owner {
		return true, false
	}
	rest, own := strings.CutPrefix(identity, owner+"_")
	return own, own && random.MatchString(rest)
}
