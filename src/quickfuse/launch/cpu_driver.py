"""The driver of CPU kernels, in LLVM IR: compiled once a process, shared by all kernels.

    quickfuse_launch   the same as the next one, with the arguments of the kernel in memory
    quickfuse_run      split the work over OpenMP threads, if there is more than one
    quickfuse_thread   one thread's share, called by the OpenMP library
    quickfuse_range    work units [begin, end): find the first member by bisection, then walk over members

`starts` holds the prefix sums of the members' work units, so that the split does not depend on where members begin.
"""

DRIVER_IR = """\
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)

;                     0: member function, 1: row words, 2: share multiple, 3: rows, 4: starts, 5: members, 6: scalars
%job = type { ptr, i64, i64, ptr, ptr, i64, ptr }

define void @quickfuse_launch(ptr %member, i64 %row_words, i64 %multiple, ptr %arguments) nounwind {
  %starts.at = getelementptr i64, ptr %arguments, i64 1
  %n_members.at = getelementptr i64, ptr %arguments, i64 2
  %scalars.at = getelementptr i64, ptr %arguments, i64 3
  %n_threads.at = getelementptr i64, ptr %arguments, i64 4
  %rows = load ptr, ptr %arguments
  %starts = load ptr, ptr %starts.at
  %n_members = load i64, ptr %n_members.at
  %scalars = load ptr, ptr %scalars.at
  %n_threads = load i64, ptr %n_threads.at
  call void @quickfuse_run(ptr %member, i64 %row_words, i64 %multiple,
                           ptr %rows, ptr %starts, i64 %n_members, ptr %scalars, i64 %n_threads)
  ret void
}

define void @quickfuse_run(ptr %member, i64 %row_words, i64 %multiple,
                           ptr %rows, ptr %starts, i64 %n_members, ptr %scalars, i64 %n_threads) nounwind {
entry:
  %job = alloca %job
  %job.1 = getelementptr %job, ptr %job, i32 0, i32 1
  %job.2 = getelementptr %job, ptr %job, i32 0, i32 2
  %job.3 = getelementptr %job, ptr %job, i32 0, i32 3
  %job.4 = getelementptr %job, ptr %job, i32 0, i32 4
  %job.5 = getelementptr %job, ptr %job, i32 0, i32 5
  %job.6 = getelementptr %job, ptr %job, i32 0, i32 6
  store ptr %member, ptr %job
  store i64 %row_words, ptr %job.1
  store i64 %multiple, ptr %job.2
  store ptr %rows, ptr %job.3
  store ptr %starts, ptr %job.4
  store i64 %n_members, ptr %job.5
  store ptr %scalars, ptr %job.6
  %alone = icmp sle i64 %n_threads, 1
  br i1 %alone, label %run, label %fork
run:
  %last = getelementptr i64, ptr %starts, i64 %n_members
  %units = load i64, ptr %last
  call void @quickfuse_range(ptr %job, i64 0, i64 %units)
  ret void
fork:
  %team = trunc i64 %n_threads to i32
  call void @GOMP_parallel(ptr @quickfuse_thread, ptr %job, i32 %team, i32 0)
  ret void
}

define internal void @quickfuse_thread(ptr %job) nounwind {
  %multiple.at = getelementptr %job, ptr %job, i32 0, i32 2
  %starts.at = getelementptr %job, ptr %job, i32 0, i32 4
  %n_members.at = getelementptr %job, ptr %job, i32 0, i32 5
  %multiple = load i64, ptr %multiple.at
  %starts = load ptr, ptr %starts.at
  %n_members = load i64, ptr %n_members.at
  %last = getelementptr i64, ptr %starts, i64 %n_members
  %units = load i64, ptr %last
  %thread32 = call i32 @omp_get_thread_num()
  %thread = zext i32 %thread32 to i64
  %team32 = call i32 @omp_get_num_threads()
  %team = zext i32 %team32 to i64

  ; share = units / team, rounded up to a multiple (a power of two)
  %chunk = mul i64 %team, %multiple
  %padded = add i64 %units, %chunk
  %above = sub i64 %padded, 1
  %chunks = udiv i64 %above, %chunk
  %share = mul i64 %chunks, %multiple

  %from = mul i64 %share, %thread
  %from.late = icmp sgt i64 %from, %units
  %begin = select i1 %from.late, i64 %units, i64 %from
  %to = add i64 %begin, %share
  %to.late = icmp sgt i64 %to, %units
  %end = select i1 %to.late, i64 %units, i64 %to
  call void @quickfuse_range(ptr %job, i64 %begin, i64 %end)
  ret void
}

define internal void @quickfuse_range(ptr %job, i64 %begin, i64 %end) nounwind {
entry:
  %memo = alloca [64 x i64]  ; for kernels that remember what the member before computed
  store i64 0, ptr %memo
  %row_words.at = getelementptr %job, ptr %job, i32 0, i32 1
  %rows.at = getelementptr %job, ptr %job, i32 0, i32 3
  %starts.at = getelementptr %job, ptr %job, i32 0, i32 4
  %n_members.at = getelementptr %job, ptr %job, i32 0, i32 5
  %scalars.at = getelementptr %job, ptr %job, i32 0, i32 6
  %member = load ptr, ptr %job
  %row_words = load i64, ptr %row_words.at
  %rows = load ptr, ptr %rows.at
  %starts = load ptr, ptr %starts.at
  %n_members = load i64, ptr %n_members.at
  %scalars = load ptr, ptr %scalars.at
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %bisect, label %done

bisect:  ; the last member that starts at or before %begin is in [%low, %high)
  %low = phi i64 [ 0, %entry ], [ %low.next, %halve ]
  %high = phi i64 [ %n_members, %entry ], [ %high.next, %halve ]
  %width = sub i64 %high, %low
  %found = icmp sle i64 %width, 1
  br i1 %found, label %members, label %halve
halve:
  %half = lshr i64 %width, 1
  %middle = add i64 %low, %half
  %middle.at = getelementptr i64, ptr %starts, i64 %middle
  %middle.start = load i64, ptr %middle.at
  %before = icmp sle i64 %middle.start, %begin
  %low.next = select i1 %before, i64 %middle, i64 %low
  %high.next = select i1 %before, i64 %high, i64 %middle
  br label %bisect

members:
  %m = phi i64 [ %low, %bisect ], [ %m.next, %next ]
  %u = phi i64 [ %begin, %bisect ], [ %until, %next ]
  %m.next = add i64 %m, 1
  %start.at = getelementptr i64, ptr %starts, i64 %m
  %stop.at = getelementptr i64, ptr %starts, i64 %m.next
  %start = load i64, ptr %start.at
  %stop = load i64, ptr %stop.at
  %whole = icmp slt i64 %stop, %end
  %until = select i1 %whole, i64 %stop, i64 %end
  %any = icmp slt i64 %u, %until
  br i1 %any, label %work, label %next
work:
  %length = sub i64 %stop, %start
  %small = icmp eq i64 %length, 1
  br i1 %small, label %ahead, label %call
ahead:  ; ask for what a small member reads and writes some members before its turn: it may lie anywhere
  %ahead.far = add i64 %m, 16
  %ahead.in = icmp slt i64 %ahead.far, %n_members
  br i1 %ahead.in, label %ask, label %call
ask:
  %ahead.word = mul i64 %ahead.far, %row_words
  %ahead.row = getelementptr ptr, ptr %rows, i64 %ahead.word
  br label %asking
asking:
  %asked = phi i64 [ 0, %ask ], [ %asked.next, %asking ]
  %ahead.at = getelementptr ptr, ptr %ahead.row, i64 %asked
  %ahead.ptr = load ptr, ptr %ahead.at
  call void @llvm.prefetch.p0(ptr %ahead.ptr, i32 1, i32 3, i32 1)
  %asked.next = add i64 %asked, 1
  %asking.more = icmp slt i64 %asked.next, %row_words
  br i1 %asking.more, label %asking, label %call
call:
  %word = mul i64 %m, %row_words
  %row = getelementptr i64, ptr %rows, i64 %word
  %first = sub i64 %u, %start
  %past = sub i64 %until, %start
  call void %member(ptr %row, ptr %scalars, i64 %first, i64 %past, ptr %memo)
  br label %next
next:
  %more = icmp slt i64 %until, %end
  br i1 %more, label %members, label %done
done:
  ret void
}
"""
