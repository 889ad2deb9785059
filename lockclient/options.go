package lockclient

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/wirefence/wirefence/fence"
)

// maxTTL is what PostgreSQL's leases allow.
const maxTTL = 366 * 24 * time.Hour

// NoMaxHold as Options.MaxHold renews a lease without limit.
const NoMaxHold time.Duration = -1

// Options of a Client. The zero value is ready to use on a store that seals by itself, as
// the PostgreSQL store does; on another store either Sealers or Unsealed must be set.
type Options struct {
	// Sealers record each grant before Acquire returns, one for each database that the
	// holder writes to. If one of them can't, there is no grant, and the SealError names
	// it. Default: none, for a store that seals by itself and a single database.
	Sealers []Sealer
	// Unsealed permits grants that nothing seals: a former holder can commit until the
	// new token is first used, and a store that loses its data may grant a token twice.
	// It has no effect with Sealers, or with a store that seals by itself.
	Unsealed bool
	// Source, if set, is named in the fences of the leases, so that a resource
	// distinguishes the tokens of this store from those of another. If grants are
	// sealed, the Sealers name the source, and fences need not.
	Source fence.Source
	// TTL is how long the store keeps a lease that is not renewed: 20ms to 366 days,
	// default 15s. The resource of a dead holder is free after this time.
	TTL time.Duration
	// Margin is how long before the store's expiry the lease's context ends: the time
	// that the holder has to stop its work. At least 1ms and at most half the TTL,
	// default a fifth of the TTL.
	Margin time.Duration
	// RenewEvery is the mean time between renewals, which vary by a tenth of it: more
	// than 0 and at most three quarters of TTL less Margin, so that a failed renewal can
	// be repeated; default a third of the TTL.
	RenewEvery time.Duration
	// MaxHold limits the life of one lease, renewals included: more than 0, default 24h,
	// NoMaxHold for no limit. At the limit the context of the lease ends; the store
	// frees the resource on Release, or a TTL after the last renewal.
	MaxHold time.Duration
	// KeepFor is how long behind its grant Lease.Keep leaves a lease taken at least: 0 to 366
	// days, default 0, with which Keep is Release. It counts from when the acquire returned.
	// A store that is a Transient can't do it.
	KeepFor time.Duration
	// Holder is the readable name of this process in the store, in resource_locks and in
	// errors of other clients: up to 160 bytes of printable UTF-8, default host:pid.
	// Every grant appends a text of its own to it (HolderOf).
	Holder string
	// RetryMin and RetryMax bound the pause between two tries of a waiting Acquire that
	// gets no notice of a release, and between two tries of a failed renewal: more than
	// 0, RetryMax no less than RetryMin; defaults 25ms and 1s. The pause doubles, with
	// jitter, from RetryMin to RetryMax.
	RetryMin, RetryMax time.Duration
	// Logger gets grants and ends of leases at debug level, losses and failed
	// renewals as warnings. Default: none.
	Logger *slog.Logger

	id string // of one acquire

	// boot reads a clock that continues while the machine is suspended.
	boot func() time.Duration
}

// AcquireOption replaces one of the client's Options for one acquire.
type AcquireOption func(*Options)

// WithTTL replaces Options.TTL, and Margin and RenewEvery by their defaults for it.
func WithTTL(ttl time.Duration) AcquireOption {
	return func(o *Options) { o.TTL, o.Margin, o.RenewEvery = ttl, 0, 0 }
}

// WithKeepFor replaces Options.KeepFor.
func WithKeepFor(d time.Duration) AcquireOption { return func(o *Options) { o.KeepFor = d } }

// WithHolder replaces Options.Holder.
func WithHolder(name string) AcquireOption { return func(o *Options) { o.Holder = name } }

// WithID replaces the random part of the grant's id; with the holder's name before it, it must
// be unique among all grants, and nobody else may guess it: up to 39 bytes. The store takes a repeated id for a repeated request
// of the same grant, which wins its lease again with a higher token. Within one client the
// second request waits until the first has failed, or its lease was released or detached.
func WithID(id string) AcquireOption { return func(o *Options) { o.id = id } }

// maxNameBytes and maxIDBytes fit into MaxGrantBytes with a slash between them.
const (
	maxNameBytes = 160
	maxIDBytes   = MaxGrantBytes - maxNameBytes - 1
)

// withDefaults replaces zero values by their defaults.
func (o Options) withDefaults() Options {
	if o.TTL == 0 {
		o.TTL = 15 * time.Second
	}
	if o.Margin == 0 {
		o.Margin = o.TTL / 5
	}
	if o.RenewEvery == 0 {
		o.RenewEvery = min(o.TTL/3, (o.TTL-o.Margin)*3/4)
	}
	if o.MaxHold == 0 {
		o.MaxHold = 24 * time.Hour
	}
	if o.Holder == "" {
		o.Holder = defaultHolder()
	}
	if o.RetryMin == 0 {
		o.RetryMin = 25 * time.Millisecond
	}
	if o.RetryMax == 0 {
		o.RetryMax = max(o.RetryMin, time.Second)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.boot == nil {
		o.boot = bootTime
	}
	return o
}

// Validate reports every value that is out of its range; zero means the default.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.TTL >= 20*time.Millisecond, "TTL %v is less than 20ms", o.TTL)
	check(o.TTL <= maxTTL, "TTL %v is more than %v", o.TTL, maxTTL)
	check(o.Margin >= time.Millisecond, "Margin %v is less than 1ms", o.Margin)
	check(o.Margin <= o.TTL/2, "Margin %v is more than half the TTL %v", o.Margin, o.TTL)
	check(o.RenewEvery > 0, "RenewEvery %v is not positive", o.RenewEvery)
	check(o.RenewEvery <= (o.TTL-o.Margin)*3/4, "RenewEvery %v is more than three quarters of TTL %v less Margin %v", o.RenewEvery, o.TTL, o.Margin)
	check(o.MaxHold > 0 || o.MaxHold == NoMaxHold, "MaxHold %v is not positive", o.MaxHold)
	check(o.KeepFor >= 0, "KeepFor %v is negative", o.KeepFor)
	check(o.KeepFor <= maxTTL, "KeepFor %v is more than %v", o.KeepFor, maxTTL)
	check(o.RetryMin > 0, "RetryMin %v is not positive", o.RetryMin)
	check(o.RetryMax >= o.RetryMin, "RetryMax %v is less than RetryMin %v", o.RetryMax, o.RetryMin)
	if o.Source != "" {
		_, err := fence.ParseSource(string(o.Source))
		check(err == nil, "Source %q: %v", o.Source, err)
	}
	check(len(o.Holder) <= maxNameBytes, "Holder has %d bytes, at most %d are allowed", len(o.Holder), maxNameBytes)
	check(len(o.id) <= maxIDBytes, "the id of the grant has %d bytes, at most %d are allowed", len(o.id), maxIDBytes)
	check(utf8.ValidString(o.Holder) && !strings.ContainsFunc(o.Holder, func(r rune) bool { return !unicode.IsPrint(r) }),
		"Holder %q is not printable UTF-8", o.Holder)
	return errors.Join(errs...)
}

func defaultHolder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + ":" + strconv.Itoa(os.Getpid())
}

// withJitter returns d with a jitter of a tenth.
func withJitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

// backoff is a pause that doubles from RetryMin to RetryMax.
type backoff struct{ next, limit time.Duration }

func (o *Options) backoff() backoff { return backoff{o.RetryMin, o.RetryMax} }

// pause returns the next pause, between half of the present step and all of it, and
// doubles the step.
func (b *backoff) pause() time.Duration {
	step := b.next
	b.next = min(2*b.next, b.limit)
	return step/2 + rand.N(step/2+1)
}
