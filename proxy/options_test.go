package proxy

import (
	"strings"
	"testing"
	"time"
)

func TestOptionsHaveDefaultsAndLimits(t *testing.T) {
	o := Options{Upstream: "postgres://db/"}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	if o.Listen[0] != "127.0.0.1:6433" || o.Mode != Enforce || o.UnfencedWrites != Allow || o.MaxConnections != 1000 ||
		o.StartupTimeout != time.Minute || o.ConnectTimeout != 5*time.Second || o.MaxStatement != 16<<20 || o.DrainTimeout != 30*time.Second {
		t.Errorf("%+v", o)
	}
	for name, change := range map[string]func(*Options){
		"mode":          func(o *Options) { o.Mode = "maybe" },
		"unfenced":      func(o *Options) { o.UnfencedWrites = "perhaps" },
		"resource":      func(o *Options) { o.Resource = strings.Repeat("x", 256) },
		"connections":   func(o *Options) { o.MaxConnections = -1 },
		"statement":     func(o *Options) { o.MaxStatement = 10 },
		"drain timeout": func(o *Options) { o.DrainTimeout = -1 },
		"upstream":      func(o *Options) { o.Upstream = "nowhere" },
		"user's":        func(o *Options) { o.MaxUserConnections = -1 },
		"address's":     func(o *Options) { o.MaxAddressLogins = -1 },
		"idle timeout":  func(o *Options) { o.IdleTimeout = -1 },
		"keepalive":     func(o *Options) { o.TCPKeepalive = time.Millisecond },
		"user timeout":  func(o *Options) { o.TCPUserTimeout = -1 },
		"abstract":      func(o *Options) { o.Listen, o.ReusePort = []string{"unix:@x"}, true },
		"no name":       func(o *Options) { o.Listen = []string{"unix:"} },
	} {
		o := Options{Upstream: "postgres://db/"}
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
