import { each, type OptionTable } from "./options.ts";

/** The kinds of operands of a program. */
export type Operands =
  | "text"
  | "look"
  | "may"
  | "read"
  | "change"
  /** Files that are read, and changed or replaced. */
  | "rewrite"
  | "write"
  /** A pattern or program text first, unless an option of `pattern` gives it; then files that are read. */
  | "pattern"
  /** Files that are read, then one that is written. */
  | "copy"
  /** The same, but the files that are read are removed. */
  | "move"
  /** A mode or owner first, then files that are changed. */
  | "mode"
  /** A file that is read, then one that is written. */
  | "filter"
  /** A file that is written, then files that are read. */
  | "archive"
  /** Names of targets, and variables of the build. */
  | "targets"
  /** A host first, then a command that runs there. */
  | "remote"
  /** Web addresses. */
  | "address";

/** The known effects of a program. */
export interface Program extends OptionTable {
  operands: Operands;
  /** No option of it, known or not, does more than change what it prints. Of any other program an unknown option asks. */
  free?: true;
  /** A source that ends with a slash stands for the content of the directory. */
  contents?: true;
  /** Options that carry the pattern, in place of the first operand. */
  pattern?: string;
  /** The suffix of the files that it compresses. */
  suffix?: string;
  /** First operands with which it runs any program, or changes what it runs. */
  runs?: string;
  /** Reads directories and all files below them. */
  walks?: Walks;
}

/** The way in which a program walks directories. */
export interface Walks {
  /** The options with which it walks; absent: always. */
  with?: string;
  /** The options with which it includes names that begin with a dot; absent: always. */
  hiddenWith?: string;
  /** The options with which it follows links. */
  linksWith?: string;
  /** Follows links always. */
  links?: true;
  /** The options that limit it to files of certain names, unless an option of `except` is used too. */
  onlyOf?: string;
  except?: string;
  /** The options that name directories to skip. */
  notInto?: string;
  /** Without an operand it walks the current directory. */
  here?: true;
}

const rgrepWalks: Walks = {
  linksWith: "-R --dereference-recursive",
  onlyOf: "--include",
  except: "--exclude --exclude-from",
  notInto: "--exclude-dir",
  here: true,
};

const grepWalks: Walks = { ...rgrepWalks, with: "-r -R --recursive --dereference-recursive -d --directories" };

/**
 * Programs by name. Lists the options that take a value, which would otherwise count as an operand, and those with effects
 * beyond the purpose of the program, and all harmless ones: any other option asks.
 */
export const programs: ReadonlyMap<string, Program> = new Map(
  Object.entries<Program>({
    // Programs that only print.
    ...each<Program>(
      ": arch basename dirname echo exit expr false groups id kill nproc ps pwd seq sleep tr true type uname uptime which whoami",
      {
        operands: "text",
        free: true,
      },
    ),
    date: {
      operands: "text",
      flag: "-u --utc --universal --debug -R --rfc-email --help --version",
      maybe: "-I --iso-8601 --rfc-3339",
      read: "-f --file",
      look: "-r --reference",
      run: "-s --set",
      text: "-d --date",
    },
    printf: { operands: "text", free: true, run: "-v" },

    // Programs that look at names and kinds.
    "[": { operands: "look", free: true, run: "-v -R" },
    df: {
      operands: "look",
      flag: "-a -h -H -i -k -l -P -T --all --human-readable --si --inodes --local --portability --print-type --total --sync --no-sync --help --version",
      maybe: "--output",
      text: "-B -t -x --block-size --type --exclude-type",
    },
    du: {
      operands: "look",
      flag: "-0 -a -b -c -D -h -H -k -L -l -m -P -S -s -x --null --all --apparent-size --bytes --total --dereference-args --human-readable --inodes --si --dereference --count-links --no-dereference --separate-dirs --summarize --one-file-system --help --version",
      maybe: "--time --time-style",
      text: "-d --max-depth -B --block-size -t --threshold --exclude",
      read: "-X --exclude-from",
      run: "--files0-from",
    },
    file: {
      operands: "read",
      flag: "-b -i -k -L -h -n -N -p -r -s -S -v -0 -E -l --brief --mime --mime-type --mime-encoding --keep-going --dereference --no-dereference --no-buffer --no-pad --raw --extension --apple --help --version",
      text: "-e -F -P --exclude --separator --parameter",
      run: "-C --compile -f --files-from -m --magic-file -z -Z --uncompress",
    },
    ls: {
      operands: "look",
      flag: "-a -A -b -B -c -C -d -D -f -F -g -G -h -H -i -k -l -L -m -n -N -o -p -q -Q -r -R -s -S -t -u -U -v -x -X -Z -1 --all --almost-all --author --escape --ignore-backups --directory --dired --group-directories-first --no-group --human-readable --si --dereference --dereference-command-line --inode --kibibytes --numeric-uid-gid --literal --hide-control-chars --show-control-chars --quote-name --reverse --recursive --size --context --full-time --zero --help --version",
      maybe: "--color --classify --hyperlink",
      text: "-I --ignore -w --width -T --tabsize --hide --block-size --format --indicator-style --quoting-style --sort --time --time-style",
    },
    readlink: {
      operands: "look",
      flag: "-f -e -m -n -q -s -v -z --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --quiet --silent --verbose --zero --help --version",
    },
    realpath: {
      operands: "look",
      flag: "-e -E -m -L -P -q -s -z --canonicalize-existing --canonicalize-missing --logical --physical --quiet --strip --no-symlinks --zero --help --version",
      look: "--relative-to --relative-base",
    },
    stat: {
      operands: "look",
      flag: "-L -f -t --dereference --file-system --terse --help --version",
      text: "-c --format --printf --cached",
    },
    test: { operands: "look", free: true, run: "-v -R" },
    tree: {
      operands: "look",
      flag: "-a -d -l -f -x -p -u -g -s -h -D -F -q -N -Q -A -S -n -C -v -t -c -U -r -X -J -i -1 --inodes --device --noreport --dirsfirst --filesfirst --si --du --prune --ignore-case --matchdirs --gitignore --metafirst --help --version",
      text: "-L -P -I -H -T --charset --filelimit --sort --timefmt",
      write: "-o",
      run: "--fromfile -R --gitfile --infofile --info",
    },

    // Programs that read files and print.
    base64: { operands: "read", flag: "-d -D -i --decode --ignore-garbage --help --version", text: "-w --wrap" },
    cat: {
      operands: "read",
      flag: "-A -b -e -E -n -s -t -T -u -v --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs --show-nonprinting --help --version",
    },
    cksum: {
      operands: "read",
      flag: "-b -t -z --binary --text --tag --zero --ignore-missing --quiet --status --strict -w --warn --help --version",
      run: "-c --check",
      text: "-a --algorithm -l --length",
    },
    cmp: {
      operands: "read",
      flag: "-b -l -s --print-bytes --verbose --quiet --silent --help --version",
      text: "-n -i --bytes --ignore-initial",
    },
    column: {
      operands: "read",
      flag: "-t -x -J -L -d -e -n --table --json --fillrows --help --version",
      text: "-s -o -N -c -R -H -W -T -O -l --separator --output-separator --table-columns --output-width",
    },
    comm: {
      operands: "read",
      flag: "-1 -2 -3 -z --total --check-order --nocheck-order --zero-terminated --help --version",
      text: "--output-delimiter",
    },
    cut: {
      operands: "read",
      flag: "-n -s -z --complement --only-delimited --zero-terminated --help --version",
      text: "-d -f -c -b --delimiter --fields --characters --bytes --output-delimiter",
    },
    diff: {
      operands: "read",
      flag: "-a -b -B -c -d -e -E -i -n -N -p -P -q -r -s -t -T -u -v -w -y -Z -1 --brief --report-identical-files --ed --rcs --side-by-side --show-c-function --expand-tabs --initial-tab --suppress-common-lines --left-column --recursive --new-file --unidirectional-new-file --ignore-file-name-case --ignore-case --ignore-tab-expansion --ignore-trailing-space --ignore-space-change --ignore-all-space --ignore-blank-lines --strip-trailing-cr --text --minimal --speed-large-files --no-dereference --no-ignore-file-name-case --normal --suppress-blank-empty --help --version",
      text: "-U -C -W -I -x -F -D -S --label -L --exclude --width --ignore-matching-lines --show-function-line --tabsize --horizon-lines --ifdef --palette --starting-file",
      maybe: "--color --unified --context",
      read: "-X --exclude-from --from-file --to-file",
      run: "-l --paginate",
      walks: { links: true },
    },
    expand: { operands: "read", flag: "-i --initial --help --version", text: "-t --tabs" },
    fmt: {
      operands: "read",
      flag: "-c -s -t -u -1 --crown-margin --split-only --tagged-paragraph --uniform-spacing --help --version",
      text: "-w --width -p --prefix -g --goal",
    },
    fold: { operands: "read", flag: "-b -s -1 --bytes --spaces --help --version", text: "-w --width" },
    head: {
      operands: "read",
      flag: "-q -v -z -1 --quiet --silent --verbose --zero-terminated --help --version",
      text: "-n -c --lines --bytes",
    },
    hexdump: {
      operands: "read",
      flag: "-b -c -C -d -o -v -x -h -V --canonical --no-squeezing --help --version",
      text: "-n -s -e -L --length --skip --format",
      read: "-f --format-file",
    },
    join: {
      operands: "read",
      flag: "-i -z --header --check-order --nocheck-order --ignore-case --zero-terminated --help --version",
      text: "-t -1 -2 -j -o -e -a -v",
    },
    ...each<Program>("md5sum sha1sum sha256sum sha512sum", {
      operands: "read",
      flag: "-b -t -z --binary --text --tag --zero --ignore-missing --quiet --status --strict -w --warn --help --version",
      run: "-c --check",
    }),
    nl: {
      operands: "read",
      flag: "-p --no-renumber --help --version",
      text: "-b -d -f -h -i -l -n -s -v -w --body-numbering --number-format --number-width --number-separator --starting-line-number --line-increment",
    },
    od: {
      operands: "read",
      flag: "-a -b -c -d -f -i -l -o -s -x -v --output-duplicates --traditional --help --version",
      text: "-A -t -N -j --address-radix --format --read-bytes --skip-bytes --endian",
      maybe: "-w -S --width --strings",
    },
    paste: { operands: "read", flag: "-s -z --serial --zero-terminated --help --version", text: "-d --delimiters" },
    rev: { operands: "read", flag: "-0 -h -V --zero --help --version" },
    strings: {
      operands: "read",
      flag: "-a -f -o -w -d -1 -v --all --data --print-file-name --include-all-whitespace --help --version",
      text: "-n -t -e -s --bytes --radix --encoding --output-separator",
      run: "-T --target -U --unicode",
    },
    tac: { operands: "read", flag: "-b -r --before --regex --help --version", text: "-s --separator" },
    tail: {
      operands: "read",
      flag: "-f -F -q -v -z -1 --retry --quiet --silent --verbose --zero-terminated --help --version",
      maybe: "--follow",
      text: "-n -c -s --lines --bytes --pid --sleep-interval --max-unchanged-stats",
    },
    wc: {
      operands: "read",
      flag: "-c -m -l -L -w --bytes --chars --lines --max-line-length --words --help --version",
      text: "--total",
      run: "--files0-from",
    },
    ...each("egrep fgrep grep", grep()),
    rgrep: { ...grep(), walks: rgrepWalks },
    jq: {
      operands: "pattern",
      // Each takes two words, and the pattern may be either.
      pattern: "--arg --argjson --slurpfile --rawfile --argfile",
      flag: "-a -c -C -e -j -M -n -r -R -s -S -h -V --ascii-output --compact-output --color-output --exit-status --join-output --monochrome-output --null-input --raw-output --raw-output0 --raw-input --slurp --sort-keys --tab --seq --stream --stream-errors --unbuffered --args --jsonargs --help --version",
      text: "--arg --argjson --slurpfile --rawfile --argfile --indent",
      run: "-f --from-file -L --library-path",
    },
    rg: {
      operands: "pattern",
      pattern: "-e --regexp -f --file --files --type-list",
      flag: "-n --line-number -N --no-line-number -i --ignore-case -s --case-sensitive -S --smart-case -w --word-regexp -x --line-regexp -v --invert-match -c --count --count-matches -l --files-with-matches --files-without-match -o --only-matching -q --quiet -F --fixed-strings -P --pcre2 -U --multiline --multiline-dotall -H --with-filename -I --no-filename -h --help -V --version --files --type-list --hidden -. --no-ignore --no-ignore-vcs --no-ignore-parent --no-ignore-dot --no-messages -u --unrestricted -uu -uuu --column --no-column --heading --no-heading --json --stats --trim --vimgrep -p --pretty --passthru -a --text -0 --null --block-buffered --line-buffered --crlf --no-config --no-unicode --glob-case-insensitive --one-file-system --debug --trace --sort-files --no-pcre2-unicode --byte-offset -b --include-zero --mmap --no-mmap --stop-on-nonmatch --auto-hybrid-regex --no-require-git",
      text: "-e --regexp -g --glob --iglob -t --type -T --type-not -A --after-context -B --before-context -C --context -m --max-count -M --max-columns -r --replace -j --threads -d --max-depth --max-filesize --color --colors --sort --sortr --engine -E --encoding --context-separator --field-match-separator --path-separator --dfa-size-limit --regex-size-limit --type-add --hyperlink-format",
      read: "-f --file --ignore-file",
      run: "--pre --pre-glob --hostname-bin -z --search-zip -L --follow",
      walks: {
        hiddenWith: "--hidden -. -u -uu -uuu --unrestricted -g --glob --iglob",
        linksWith: "-L --follow",
        here: true,
      },
    },
    ag: {
      operands: "pattern",
      flag: "-a -c -F -H -i -l -L -n -o -Q -r -R -s -S -u -U -v -w -z -0 -1 --ackmate --all-types --all-text --count --color --nocolor --column --files-with-matches --files-without-matches --filename --nofilename --fixed-strings --follow -f --group --nogroup --heading --noheading --hidden --ignore-case --invert-match --line-numbers --literal --nonumbers --numbers --null --one-device --passthrough --print-all-files --print-long-lines --recurse --norecurse --no-recurse --search-binary --silent --smart-case --case-sensitive --stats --stats-only --unrestricted --skip-vcs-ignores --vimgrep --word-regexp --help --version",
      maybe: "--after --before --context",
      number: "-A -B -C",
      text: "-G -m -W --depth --file-search-regex --ignore --ignore-dir --max-count --width",
      run: "--pager -p --path-to-ignore -g --workers",
      walks: { hiddenWith: "--hidden -u --unrestricted -U", linksWith: "-f --follow", here: true },
    },
    ack: {
      operands: "pattern",
      flag: "-1 -c -h -H -i -I -l -L -n -o -Q -r -R -s -v -w --count --color --nocolor --colour --column --files-with-matches --files-without-matches --group --nogroup --heading --noheading --ignore-case --invert-match --literal --no-recurse --recurse --smart-case --word-regexp --with-filename --no-filename --noenv --help --version",
      number: "-C --context",
      text: "-A -B -m -t -T --after-context --before-context --max-count --type --ignore-dir",
      run: "--pager --ackrc -f -g -x --files-from --output",
      walks: { here: true, links: true },
    },
    sort: {
      operands: "read",
      flag: "-b -d -f -g -i -M -h -n -R -r -V -c -C -m -s -u -z --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort --ignore-nonprinting --month-sort --human-numeric-sort --numeric-sort --random-sort --reverse --version-sort --debug --merge --stable --unique --zero-terminated --help --version",
      maybe: "--check",
      text: "-k --key -t --field-separator -S --buffer-size --parallel --batch-size --sort",
      write: "-o --output -T --temporary-directory",
      run: "--compress-program --files0-from --random-source",
    },
    uniq: {
      operands: "filter",
      flag: "-c -d -D -i -u -z -1 --count --repeated --ignore-case --unique --zero-terminated --help --version",
      maybe: "--all-repeated --group",
      text: "-f -s -w --skip-fields --skip-chars --check-chars",
    },
    xxd: {
      operands: "filter",
      flag: "-a -b -C -e -E -i -p -ps -plain -postscript -r -revert -u -v -autoskip -bits -include -uppercase -d -t",
      text: "-c -g -l -s -o -n -cols -len -seek -groupsize -name",
    },
    less: {
      operands: "read",
      flag: "-N -S -R -r -F -X -i -I -n -e -E -M -m -q -s -g",
      run: "-o -O -k -t -T -p +",
    },
    more: { operands: "read", flag: "-d -f -l -p -c -s -u", run: "+" },
    man: {
      operands: "may",
      flag: "-a -f -k -w -W -K -i -I --all --whatis --apropos --where --path --help",
      text: "-s -S -L",
      run: "-P --pager -H -M -C -l --local-file --html -p -E -R -T -Z -X",
    },

    // Programs that change files, as their name says: a rule for them covers changes. New files need an edit rule too.
    bzip2: {
      operands: "rewrite",
      suffix: ".bz2",
      flag: "-c -d -f -k -q -s -t -v -z -1 --stdout --decompress --compress --keep --force --test --quiet --verbose --small --fast --best -h -V --help --version",
    },
    chgrp: {
      operands: "mode",
      flag: "-c -f -v -R --changes --silent --quiet --verbose --recursive --preserve-root --no-preserve-root -h -H -L -P --dereference --no-dereference --help --version",
      look: "--reference",
      walks: { with: "-R --recursive", linksWith: "-L" },
    },
    chmod: {
      operands: "mode",
      flag: "-c -f -v -R --changes --silent --quiet --verbose --recursive --preserve-root --no-preserve-root --help --version",
      look: "--reference",
      walks: { with: "-R --recursive" },
    },
    chown: {
      operands: "mode",
      flag: "-c -f -v -R --changes --silent --quiet --verbose --recursive --preserve-root --no-preserve-root -h -H -L -P --dereference --no-dereference --help --version",
      look: "--reference",
      text: "--from",
      walks: { with: "-R --recursive", linksWith: "-L" },
    },
    cp: {
      operands: "copy",
      flag: "-a -b -d -f -H -i -l -L -n -p -P -r -R -s -T -u -v -x -Z --archive --attributes-only --force --interactive --link --dereference --no-clobber --no-dereference --recursive --remove-destination --strip-trailing-slashes --symbolic-link --no-target-directory --verbose --one-file-system --debug --help --version",
      maybe: "--backup --preserve --update --sparse --reflink --context",
      write: "-t --target-directory",
      text: "-S --suffix --no-preserve",
      run: "--parents",
      walks: { with: "-r -R -a --recursive --archive", linksWith: "-L --dereference" },
    },
    bunzip2: {
      operands: "rewrite",
      suffix: ".bz2",
      flag: "-c -f -k -q -s -v -t --stdout --keep --force --quiet --verbose --test -h -V --help --version",
    },
    ...each<Program>("gunzip gzip", {
      operands: "rewrite",
      suffix: ".gz",
      flag: "-c -d -f -k -l -n -q -t -v -1 --stdout --to-stdout --decompress --uncompress --force --keep --list --no-name --quiet --test --verbose --fast --best --rsyncable --synchronous -h -V --help --version",
      text: "-S --suffix",
      run: "-N --name -r --recursive",
      walks: { with: "-r --recursive" },
    }),
    install: {
      operands: "copy",
      flag: "-b -c -C -d -p -s -T -v -Z --compare --directory --preserve-timestamps --strip --no-target-directory --verbose --debug --help --version",
      maybe: "--backup --context",
      write: "-t --target-directory",
      text: "-m -o -g -S --mode --owner --group --suffix",
      run: "--strip-program -D",
    },
    ln: {
      operands: "copy",
      flag: "-b -d -f -F -i -L -n -P -r -s -T -v --force --directory --interactive --logical --no-dereference --physical --relative --symbolic --no-target-directory --verbose --help --version",
      maybe: "--backup",
      write: "-t --target-directory",
      text: "-S --suffix",
    },
    mkdir: { operands: "change", flag: "-p -v -Z --parents --verbose --help --version", text: "-m --mode" },
    mkfifo: { operands: "change", flag: "-Z --help --version", text: "-m --mode" },
    mv: {
      operands: "move",
      flag: "-b -f -i -n -T -u -v -Z --force --interactive --no-clobber --no-copy --exchange --strip-trailing-slashes --no-target-directory --verbose --debug --help --version",
      maybe: "--backup --update",
      write: "-t --target-directory",
      text: "-S --suffix",
      walks: {},
    },
    rm: {
      operands: "change",
      flag: "-d -f -i -I -r -R -v --dir --force --recursive --verbose --preserve-root --no-preserve-root --one-file-system --help --version",
      maybe: "--interactive",
      walks: { with: "-r -R --recursive" },
    },
    rmdir: { operands: "change", flag: "-p -v --parents --verbose --ignore-fail-on-non-empty --help --version" },
    shred: {
      operands: "change",
      flag: "-f -u -v -x -z --force --verbose --exact --zero --help --version",
      maybe: "--remove",
      text: "-n -s --iterations --size",
      run: "--random-source",
    },
    shuf: {
      operands: "read",
      flag: "-e -r -z --echo --repeat --zero-terminated --help --version",
      text: "-n -i --head-count --input-range",
      write: "-o --output",
      run: "--random-source",
    },
    tee: { operands: "write", flag: "-a -i -p --append --ignore-interrupts --help --version", maybe: "--output-error" },
    touch: {
      operands: "change",
      flag: "-a -c -f -h -m --no-create --no-dereference --help --version",
      text: "-d -t --date --time",
      look: "-r --reference",
    },
    truncate: {
      operands: "write",
      flag: "-c -o --no-create --io-blocks --help --version",
      text: "-s --size",
      look: "-r --reference",
    },
    unlink: { operands: "change", flag: "--help --version" },
    xz: {
      operands: "rewrite",
      suffix: ".xz",
      flag: "-z -d -t -l -k -f -c -e -q -Q -v -1 --compress --decompress --uncompress --test --list --keep --force --stdout --to-stdout --extreme --quiet --no-warn --verbose --robot -h -H -V --help --version",
      text: "-S --suffix -F --format -C --check -T --threads -M --memlimit",
      run: "--files --files0",
    },
    zstd: {
      operands: "rewrite",
      suffix: ".zst",
      flag: "-z -d -t -l -k -f -c -q -v -1 -C --compress --decompress --uncompress --test --list --keep --force --stdout --quiet --verbose --rm --ultra --check --no-check --sparse --no-sparse --no-progress --progress -h -H -V --help --version",
      maybe: "-T --threads --long --fast --adapt",
      write: "-o",
      run: "--filelist --output-dir-flat --output-dir-mirror -D -r --train --patch-from -M",
    },
    zip: {
      operands: "archive",
      flag: "-r -q -j -u -9 -1 -y -X",
      text: "-x -i",
      walks: { with: "-r", linksWith: "-r" },
    },

    // Programs that reach other machines.
    curl: {
      operands: "address",
      flag: "-s --silent -S --show-error -f --fail --fail-with-body -L --location -i --include -I --head -v --verbose -g --globoff -G --get -k --insecure -4 --ipv4 -6 --ipv6 -# --progress-bar -N --no-buffer --compressed --http1.1 --http2 --http3 --tlsv1.2 --tlsv1.3 -Z --parallel --no-progress-meter -h --help -V --version --raw --tcp-nodelay --path-as-is --post301 --post302 -a --retry-connrefused --retry-all-errors",
      text: "-X --request -A --user-agent -e --referer -m --max-time --connect-timeout --retry --retry-delay --retry-max-time -u --user -r --range --max-redirs --limit-rate --oauth2-bearer --max-filesize -z --time-cond --keepalive-time -y -Y -w --write-out --data-raw --form-string",
      data: "-H --header -d --data --data-ascii --data-binary --data-urlencode --json -F --form --url-query",
      read: "-T --upload-file --cacert --capath -E --cert --key --etag-compare",
      write:
        "-o --output -D --dump-header -c --cookie-jar --trace --trace-ascii --stderr --libcurl --hsts --alt-svc --etag-save",
      run: "--output-dir -K --config -O --remote-name --remote-name-all -J --remote-header-name -x --proxy --preproxy --socks4 --socks5 --resolve --connect-to --next -: --url --netrc -n --netrc-file --netrc-optional --unix-socket --abstract-unix-socket --doh-url --dns-servers -q --disable --proto-default -b --cookie --engine --interface --variable --ipfs-gateway --location-trusted",
    },
    wget: {
      operands: "address",
      flag: "-q --quiet -nv --no-verbose -v --verbose --spider -S --server-response -4 -6 -c --continue --no-check-certificate -h --help -V --version -nc --no-clobber",
      text: "-T --timeout -t --tries -U --user-agent --header -w --wait --limit-rate --method --post-data --body-data",
      read: "--post-file --body-file --ca-certificate --certificate --private-key",
      write: "-O --output-document -o --output-file -a --append-output --save-cookies",
      run: "-P --directory-prefix -e --execute -i --input-file --config --use-askpass --load-cookies -r --recursive -m --mirror --rejected-log --warc-file",
    },
    ssh: {
      operands: "remote",
      flag: "-4 -6 -T -t -q -v -n -x -a -C",
      text: "-p -l",
      read: "-i",
      write: "-E",
      run: "-o -F -J -L -R -D -W -S -O -M -N -f -A -X -Y -I -w -B -b",
    },
    scp: {
      operands: "copy",
      flag: "-r -p -q -v -C -4 -6 -B",
      text: "-P -l -c",
      read: "-i",
      run: "-S -o -F -J -D -3",
      walks: { with: "-r", linksWith: "-r" },
    },
    sftp: { operands: "may" },
    rsync: {
      operands: "copy",
      contents: true,
      flag: "-a -v -r -z -n -h -u -t -p -l -q -c -W -x -H -P --archive --verbose --recursive --compress --dry-run --progress --stats --checksum --update --partial --itemize-changes -i --human-readable --help --version",
      text: "--exclude --include --bwlimit --max-size --min-size --timeout --port",
      read: "--exclude-from --include-from --password-file",
      write: "--log-file",
      run: "--backup-dir --temp-dir --partial-dir -e --rsh --rsync-path --files-from --delete --remove-source-files --daemon --config -L -K -s",
      walks: { with: "-a -r --archive --recursive", linksWith: "-L --copy-links" },
    },

    // Programs that run what a project defines.
    make: {
      operands: "targets",
      flag: "-B -k -n -s -w -d -q -i -S -t --always-make --keep-going --dry-run --silent --quiet --no-print-directory --print-directory --help --version",
      maybe: "-j --jobs -l --load-average -O --output-sync",
      run: "-C --directory -f --file --makefile -I --include-dir --eval -E -e --environment-overrides -o -W",
    },
    cargo: {
      operands: "may",
      runs: "rustc rustdoc",
      flag: "-v -vv -q -r -h -V --verbose --quiet --release --locked --offline --frozen --all --workspace --lib --bins --tests --benches --examples --all-targets --all-features --no-default-features --no-run --no-fail-fast --keep-going --doc --list --check --fix --allow-dirty --allow-staged --no-deps --open --nocapture --help --version --dev --build",
      maybe: "--color --timings",
      text: "-p -j -F --package --exclude --bin --test --bench --example --jobs --features --profile --target --message-format --depth --edition --color",
      run: "--config -C -Z --manifest-path --target-dir --artifact-dir --out-dir",
    },
    go: {
      operands: "may",
      flag: "-v -x -n -race -msan -cover -short -json -a -u -t -d -h -m -l -s -e -work -trimpath -failfast -benchmem -i -list -deps -test -find -fix --help",
      text: "-run -bench -count -timeout -cpu -parallel -covermode -coverpkg -tags -p -f -skip -shuffle -benchtime",
      run: "-exec -toolexec -overlay -modfile -C -vettool -ldflags -gcflags -asmflags -gccgoflags -pkgdir -compiler -mod --exec --toolexec --overlay --modfile --vettool --ldflags --gcflags --asmflags -w -outputdir",
      write: "-o -coverprofile -cpuprofile -memprofile -blockprofile -mutexprofile -trace",
    },
    yarn: {
      operands: "may",
      runs: "config create dlx exec global node plugin policies set",
      flag: "-s -D -E -P -O -h -v --silent --dev --exact --frozen-lockfile --immutable --offline --production --prod --json --ignore-scripts --non-interactive --verbose --no-progress --check --watch --coverage --all --help --version -W --peer --optional --tilde --force",
      text: "--depth --pattern --level --groups",
      run: "--cwd --use-yarnrc --script-shell --modules-directory --global-directory --cache-directory --registry",
    },
  }),
);

function grep(): Program {
  return {
    operands: "pattern",
    pattern: "-e --regexp -f --file",
    flag: "-a -b -c -E -F -G -h -H -i -I -l -L -n -o -P -q -r -R -s -T -U -v -V -w -x -y -z -Z -1 --basic-regexp --byte-offset --count --dereference-recursive --extended-regexp --files-with-matches --files-without-match --fixed-strings --ignore-case --no-ignore-case --initial-tab --invert-match --line-buffered --line-number --line-regexp --no-filename --no-messages --null --null-data --only-matching --perl-regexp --quiet --silent --recursive --text --binary --with-filename --word-regexp --help --version --no-group-separator",
    text: "-e --regexp -A -B -C -m -d -D --after-context --before-context --context --max-count --include --exclude --exclude-dir --label --binary-files --directories --devices --group-separator",
    maybe: "--color --colour",
    read: "-f --file --exclude-from",
    walks: grepWalks,
  };
}

/** Variables that only change the format of output. */
export function isHarmlessVariable(name: string): boolean {
  return /^(CI|NO_COLOR|FORCE_COLOR|LANG|LC_[A-Z]+|TZ|NODE_ENV)$/.test(name);
}

/** Shell commands that change the meaning of the rest of a line. */
export const changesShell: ReadonlySet<string> = new Set(
  "alias bg bind builtin caller compgen complete compopt declare dirs disown enable exec export fc fg getopts hash history let local logout mapfile popd pushd read readarray readonly return set shift shopt source . suspend trap typeset ulimit umask unalias unset wait".split(
    " ",
  ),
);
