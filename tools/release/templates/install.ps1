# Installs Parley {{.Version}} for this user, without an administrator:
#
#   irm {{.URL}}/install.ps1 | iex
#
# $env:PARLEY_INSTALL_DIR  where the programs go (default %LOCALAPPDATA%\Programs\parley)
# $env:PARLEY_INSTALL_URL  where the archives are (default {{.URL}})
# $env:PARLEY_UNINSTALL    anything: remove it; your data in ~\.a2a-hub stays
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'

$version = '{{.Version}}'
$url = if ($env:PARLEY_INSTALL_URL) { $env:PARLEY_INSTALL_URL } else { '{{.URL}}' }
$bin = if ($env:PARLEY_INSTALL_DIR) { $env:PARLEY_INSTALL_DIR } else { Join-Path $env:LOCALAPPDATA 'Programs\parley' }
$arch = if ($env:PROCESSOR_ARCHITECTURE -eq 'ARM64') { 'arm64' } else { 'amd64' }
$name = "parley_${version}_windows_$arch"

function Set-UserPath([string[]] $parts) { [Environment]::SetEnvironmentVariable('Path', ($parts -join ';'), 'User') }
$path = @([Environment]::GetEnvironmentVariable('Path', 'User') -split ';' | Where-Object { $_ })

if ($env:PARLEY_UNINSTALL) {
  Remove-Item -Recurse -Force $bin
  Set-UserPath ($path | Where-Object { $_ -ne $bin })
  Write-Host 'Parley is removed. Its data, if you have used it, is still in ~\.a2a-hub.'
  return
}

$work = Join-Path ([IO.Path]::GetTempPath()) ([Guid]::NewGuid())
New-Item -ItemType Directory $work | Out-Null
try {
  foreach ($file in 'SHA256SUMS', "$name.zip") { Invoke-WebRequest -UseBasicParsing "$url/$file" -OutFile (Join-Path $work $file) }
  $line = Get-Content (Join-Path $work 'SHA256SUMS') | Where-Object { $_.EndsWith("  $name.zip") }
  if (-not $line) { throw "SHA256SUMS does not have $name.zip" }
  $have = (Get-FileHash -Algorithm SHA256 (Join-Path $work "$name.zip")).Hash.ToLower()
  if ($have -ne $line.Split(' ')[0]) { throw "$name.zip is not what SHA256SUMS says: nothing is installed" }
  Expand-Archive (Join-Path $work "$name.zip") $work
  New-Item -ItemType Directory -Force $bin | Out-Null
  foreach ($program in 'parley', 'a2a-hub', 'nats-mcp-server') {
    $to = Join-Path $bin "$program.exe"
    # A running program can be renamed, but not replaced.
    if (Test-Path $to) { Move-Item -Force $to "$to.old" }
    Copy-Item (Join-Path $work "$name\$program.exe") $to
    Remove-Item -Force -ErrorAction SilentlyContinue "$to.old"
  }
  Copy-Item (Join-Path $work "$name\NOTICE") $bin
} finally {
  Remove-Item -Recurse -Force $work
}
if ($path -notcontains $bin) { Set-UserPath ($path + $bin) }
$env:Path = "$bin;$env:Path"
Write-Host "Parley $version is in $bin."
Write-Host 'Next: parley send echo "hello"'
