package main

import (
	"math"
	"strings"
	"testing"
)

const benchOutput = `goos: linux
BenchmarkStored/start/2000-2         	      20	  4000000 ns/op
BenchmarkStored/list/2000-2          	      20	     5000 ns/op	 1 B/op
BenchmarkStored/start/8000-2         	      20	 16000000 ns/op
BenchmarkStored/list/8000-2          	      20	     5000 ns/op
BenchmarkStored/start/32000-2        	      20	        12.0 extra	 64000000 ns/op
PASS
`

func TestTheExponentIsThatOfTheCases(t *testing.T) {
	sizes, micros := cases([]byte(benchOutput), "BenchmarkStored/start/")
	if len(sizes) != 3 || sizes[2] != 32000 || micros[2] != 64000 {
		t.Fatalf("%v %v", sizes, micros)
	}
	if e := exponent(sizes, micros); math.Abs(e-1) > 1e-9 {
		t.Errorf("a linear cost has the exponent %v", e)
	}
	sizes, micros = cases([]byte(benchOutput), "BenchmarkStored/list/")
	if e := exponent(sizes, micros); len(sizes) != 2 || math.Abs(e) > 1e-9 {
		t.Errorf("a constant cost has the exponent %v of %v", e, sizes)
	}
}

func TestACostThatGrowsIsNamed(t *testing.T) {
	all := []growth{
		{Name: "steady", Of: "tasks", Sizes: []float64{1, 10}, Micros: []float64{5, 5}, Exponent: 0, Most: 0.25, Load: "1"},
		{Name: "slower", Of: "tasks", Sizes: []float64{1, 10}, Micros: []float64{5, 50}, Exponent: 1, Most: 0.25, Load: "1"},
	}
	if err := checkGrowth(all[:1]); err != nil {
		t.Error(err)
	}
	if err := checkGrowth(all); err == nil || !strings.Contains(err.Error(), "slower") || strings.Contains(err.Error(), "steady") {
		t.Errorf("%v", err)
	}
	var out strings.Builder
	if err := printGrowth(&out, all, false); err != nil || !strings.Contains(out.String(), "1.00 (grows)") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	if err := printGrowth(&out, all, true); err != nil || !strings.Contains(out.String(), `"exponent": 1`) {
		t.Errorf("%v\n%s", err, out.String())
	}
}
