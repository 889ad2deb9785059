package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/campaign"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/proxy"
)

// sidecar is the lease that the proxy holds for its application, or waits for. A
// nil one is that of a proxy without WIREFENCE_LEASE.
type sidecar struct {
	*campaign.Campaign
	client *lockclient.Client
	stop   context.CancelFunc // stops the campaign
	end    func()             // waits for its end
}

// newSidecar prepares the campaign that the settings describe. It doesn't connect yet.
func newSidecar(cfg proxySettings, leases *leases, registry prometheus.Registerer, log *slog.Logger) (*sidecar, error) {
	if cfg.LeaseOf == "" {
		return nil, nil
	}
	resource, err := fence.ParseResource(cfg.LeaseOf)
	if err != nil {
		return nil, fmt.Errorf("WIREFENCE_LEASE: %w", err)
	}
	if cfg.DatabaseURL == "" {
		return nil, errors.New("WIREFENCE_LEASE needs WIREFENCE_DATABASE_URL: a lease that is not sealed in the database " +
			"doesn't keep its former holder from committing until the next one's first write")
	}
	if leases == nil {
		return nil, nil // they couldn't be opened, which is reported
	}
	s := &sidecar{}
	// The client logs nothing: the campaign logs when the lease is won and lost.
	if s.client, err = leases.client(cfg.LeaseSettings, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	if s.Campaign, err = campaign.New(campaign.Options{Client: s.client, Resource: resource, Logger: log, Registerer: registry}); err != nil {
		return nil, err
	}
	return s, nil
}

// lease returns the proxy's option of that name.
func (s *sidecar) lease() proxy.Lease {
	if s == nil {
		return nil
	}
	return s.Campaign
}

// run campaigns for the lease until ctx ends; a lease that is held then is kept
// until release.
func (s *sidecar) run(ctx context.Context) {
	if s != nil {
		ctx, s.stop = context.WithCancel(ctx)
		s.end = inBackground(ctx, s.Run)
	}
}

// How long the release of the lease may take: after a drain, and after a second
// signal or a failure has ended the proxy at once. If the release fails, the lease expires.
const (
	releaseTime   = 5 * time.Second
	releaseAtOnce = time.Second
)

// keep is release behind an orderly stop: it leaves the lease taken until WIREFENCE_KEEP_FOR
// after its grant.
func (s *sidecar) keep(log *slog.Logger) {
	if s == nil {
		return
	}
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
	defer cancel()
	if err := s.Keep(ctx); err != nil {
		log.Warn("cannot keep lease, it will expire", "error", err)
	}
	s.release(releaseTime, log)
}

// release gives the lease back and waits for the end of the campaign, which run
// has begun.
func (s *sidecar) release(patience time.Duration, log *slog.Logger) {
	if s == nil {
		return
	}
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.client.Close(ctx); err != nil {
		log.Warn("cannot release lease, it will expire", "error", err)
		return
	}
	s.end()
}
