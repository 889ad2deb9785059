package session

import (
	"errors"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/sqltext"
)

func TestStartupSettings(t *testing.T) {
	for _, c := range []struct {
		name           string
		params         map[string]string
		fence, unknown string
	}{
		{"nothing", map[string]string{"user": "app", "application_name": "wirefence.tokem=1"}, "", ""},
		{"-c", map[string]string{"options": "-c wirefence.token=orders=34"}, "orders=34", ""},
		{"-c without a space", map[string]string{"options": "-cwork_mem=4MB -cWireFence.Token=orders=34"}, "orders=34", ""},
		{"two dashes", map[string]string{"options": " --wirefence.token=orders=34 "}, "orders=34", ""},
		{"the last one counts", map[string]string{"options": "-c wirefence.token=orders=33 -c wirefence.token=orders=34"}, "orders=34", ""},
		{"an escaped space", map[string]string{"options": `-c application_name=a\ -c\ wirefence.tokem=1 -c wirefence.token=orders=34`}, "orders=34", ""},
		{"by name", map[string]string{"options": "-c wirefence.token=orders=33", "Wirefence.Token": "orders=34"}, "orders=34", ""},
		{"a reason", map[string]string{"options": "-c wirefence.reason=x"}, "", ""},
		{"unknown", map[string]string{"options": "-c wirefence.tokem=orders=34"}, "", "wirefence.tokem"},
		{"unknown, two dashes", map[string]string{"options": "--wirefence.to-ken=orders=34"}, "", "wirefence.to_ken"},
		{"unknown beside the fence", map[string]string{"options": "-c wirefence.token=orders=34 -c wirefence.tokn=orders=34"}, "orders=34", "wirefence.tokn"},
		{"unknown, by name", map[string]string{"WIREFENCE.TOKN": "orders=34"}, "", "wirefence.tokn"},
		{"escaped", map[string]string{"options": `-c wire\fence.tokn=1`}, "", "wirefence.tokn"},
		{"behind other switches", map[string]string{"options": "-ec wirefence.token=orders=34"}, "orders=34", ""},
		{"behind other switches, without a space", map[string]string{"options": "-Fecwirefence.token=orders=34"}, "orders=34", ""},
		{"two dashes behind another switch", map[string]string{"options": "-e-wirefence.tokem=orders=34"}, "", "wirefence.tokem"},
		{"the value of another switch", map[string]string{"options": "-S -cwirefence.tokem=1 -d5 -cwirefence.token=orders=34"}, "orders=34", ""},
		{"taken back", map[string]string{"options": "-c wirefence.token=orders=33 -c wirefence.token="}, "", ""},
		{"taken back by name", map[string]string{"options": "-c wirefence.token=orders=33", "wirefence.token": ""}, "", ""},
		{"cut off", map[string]string{"options": "-c"}, "", ""},
	} {
		s := &Session{}
		s.readStartupSettings(c.params)
		unknown, got := (*sqltext.UnknownSettingError)(nil), ""
		if errors.As(s.settingErr, &unknown) {
			got = unknown.Name
		}
		if s.startupFence != c.fence || s.fenceAtStartup != (c.fence != "") || got != c.unknown {
			t.Errorf("%s: fence %q, unknown %q", c.name, s.startupFence, got)
		}
	}
}
