package session

import "testing"

func TestStartupSettings(t *testing.T) {
	for _, c := range []struct {
		name   string
		params map[string]string
		fence  string
	}{
		{"nothing", map[string]string{"user": "app", "application_name": "wirefence.tokem=1"}, ""},
		{"-c", map[string]string{"options": "-c wirefence.token=orders=34"}, "orders=34"},
		{"-c without a space", map[string]string{"options": "-cwork_mem=4MB -cWireFence.Token=orders=34"}, "orders=34"},
		{"two dashes", map[string]string{"options": " --wirefence.token=orders=34 "}, "orders=34"},
		{"the last one counts", map[string]string{"options": "-c wirefence.token=orders=33 -c wirefence.token=orders=34"}, "orders=34"},
		{"an escaped space", map[string]string{"options": `-c application_name=a\ -c\ wirefence.tokem=1 -c wirefence.token=orders=34`}, "orders=34"},
		{"by name", map[string]string{"options": "-c wirefence.token=orders=33", "Wirefence.Token": "orders=34"}, "orders=34"},
		{"a reason", map[string]string{"options": "-c wirefence.reason=x"}, ""},
		{"behind other switches", map[string]string{"options": "-ec wirefence.token=orders=34"}, "orders=34"},
		{"behind other switches, without a space", map[string]string{"options": "-Fecwirefence.token=orders=34"}, "orders=34"},
		{"the value of another switch", map[string]string{"options": "-S -cwirefence.tokem=1 -d5 -cwirefence.token=orders=34"}, "orders=34"},
		{"taken back", map[string]string{"options": "-c wirefence.token=orders=33 -c wirefence.token="}, ""},
		{"taken back by name", map[string]string{"options": "-c wirefence.token=orders=33", "wirefence.token": ""}, ""},
		{"cut off", map[string]string{"options": "-c"}, ""},
	} {
		s := &Session{}
		s.readStartupSettings(c.params)
		if s.startupFence != c.fence || s.login.fenceAtStartup != (c.fence != "") {
			t.Errorf("%s: fence %q", c.name, s.startupFence)
		}
	}
}
