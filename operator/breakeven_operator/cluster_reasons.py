"""Why the operator acted, held back or failed on the cluster: one word each.

The same word stands in the status, the event, the log line, the metric label and `docs/reasons.md`. Words about fits
and about the choice of an arm are the library's (`breakeven.reasons.Reason`); the two never share a word.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self


class ClusterReason(StrEnum):
    """A reason word with its meaning and what a person does about it."""

    meaning: str
    remedy: str

    def __new__(cls, word: str, meaning: str, remedy: str = "Nothing to do.") -> Self:
        """Make a member that is its word and carries its texts."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.meaning = meaning
        member.remedy = remedy
        return member

    @classmethod
    def named(cls, word: str | None) -> Self | None:
        """The reason of a word; None of any other word, as of another version."""
        return next((one for one in cls if one == word), None)

    # State of a service.
    WATCHING = (
        "Watching",
        "Target, profile and metrics are there; the operator decides whenever something changes, and every few minutes.",
    )
    STABLE = "Stable", "No roll is under way."
    DISABLED = "Disabled", "The mode is Disabled: nothing is decided.", "Set updatePolicy.mode to Recommend."
    PAUSED = "Paused", "spec.paused is true: nothing is changed or started.", "Set spec.paused to false."
    PINNED = (
        "Pinned",
        "updatePolicy.pinnedArm says which arm runs.",
        "Remove pinnedArm to let figures decide.",
    )
    CONTROL = (
        "Control",
        "spec.controlOf names a service beside which this target keeps the other arm, so that the speedup of now is measured.",
        "Nothing to do; without controlOf figures decide.",
    )
    CONTROL_MOVED = (
        "ControlMoved",
        "The speedup that the standing control measures has significantly changed.",
        "Look at what changed then: image, texts, load; ask for a calibration if the gain is gone.",
    )
    ARM_UNMEASURED = (
        "ArmUnmeasured",
        "The profile in force has not measured the arm that updatePolicy.pinnedArm names, so nothing is rolled to it; or not the schedule of draft lengths that the target runs.",
        "Wait for the calibration, or ask for one; if the arm failed in it, read why in the SpeculationProfile. Nothing to do if the target is rolled to the measured schedule.",
    )
    INVALID_SPEC = "InvalidSpec", "The spec breaks a rule; the message names the field.", "Correct the field."

    # Target.
    TARGET_NOT_FOUND = (
        "TargetNotFound",
        "No object has the name in targetRef, in this namespace. A calibration under way ends and frees its GPU.",
        "Create the target (a calibration that ended begins again once the target serves), or delete this SpeculativeService and make one for the right target.",
    )
    TARGET_UNREADABLE = (
        "TargetUnreadable",
        "The API server's object of the target cannot be read; the message names the part, or says that its kind is not installed or not in the operator's role. Nothing is changed or started.",
        "Look at that part with `kubectl get --show-managed-fields --output=json`; `kubectl patch` takes away what is nested too deep. A kind that is installed is found within five minutes; the chart has the roles.",
    )
    TARGET_OWNED = (
        "TargetOwned",
        "The target belongs to another controller, which would revert a change: it is made by one, takes its pod template from another object, or is of a kind that the operator looks at and does not change.",
        "Point targetRef at the object that no other controller owns, if there is one. Else use mode Recommend, and write the arm's value where that controller takes its pods' annotations from.",
    )
    TARGET_REFUSED = (
        "TargetRefused",
        "No arm is right for this target, so it is not calibrated, decided about or rolled: its pods run on more than one GPU class, each with a break-even of its own, or it hands KV caches on or takes them (prefill and decode apart, or a shared store), and a restart breaks the connections of the engines at the other end.",
        "Of more than one class: split the target with a nodeSelector, and make one SpeculativeService for each part. Of KV caches: let one engine read prompts and decode (no --kv-transfer-config, no prefill part), or set the arm yourself on both halves in a window without requests, and delete the service.",
    )
    TARGET_PAUSED = (
        "TargetPaused",
        "The target keeps its controller from rolling a change: spec.paused, updateStrategy OnDelete, a partition or an aborted update.",
        "Do what the message says: kubectl rollout resume, or RollingUpdate without a partition.",
    )
    ENGINE_UNCLEAR = (
        "EngineUnclear",
        "The manifest does not show how one engine serves: no container starts vLLM, more than one does, the named one does not exist, a shell hides the command line (a condition, a loop, a file), or pods of a group serve beside its leader. The message says which.",
        "Start vLLM by `vllm serve MODEL`, its command line as a list in command and args, or once in a line of its own with `exec`; set targetRef.containerName; let the leader of a group alone serve.",
    )
    ALREADY_MANAGED = (
        "AlreadyManaged",
        "An older SpeculativeService has the same target.",
        "Delete one of the two.",
    )
    GPU_CLASS_UNKNOWN = (
        "GpuClassUnknown",
        "No node of the target's pods says which GPU it has (label nvidia.com/gpu.product).",
        "Run GPU Feature Discovery, or label the nodes.",
    )
    POD_NOT_COPIED = (
        "PodNotCopied",
        "A calibration cannot copy the target's pod: a replica is a group of several pods, NetworkPolicies restrict its traffic and none would restrict the copy's, it holds a credential that a copy must not have, or a selector would pick the copy. The message says which.",
        "Do what the message says; or measure the arms on pods of your own with GuideLLM or `vllm bench serve`, and import the results (importFrom): the target is then decided on and rolled like any other.",
    )
    VOLUME_NOT_SHAREABLE = (
        "VolumeNotShareable",
        "The target mounts a volume or claims a device that a second pod cannot have.",
        "Use a ReadOnlyMany or ReadWriteMany volume for the model, or bake it into the image.",
    )
    NOT_OPTED_IN = (
        "NotOptedIn",
        "The target's manifest does not take its arm from the annotation, so a roll would change nothing; or its command line sets speculation beside the opt-in argument, and would win over it.",
        "Add and remove the lines that `breakeven lint deployment.yaml` prints.",
    )
    DRAIN_NOT_CONFIGURED = (
        "DrainNotConfigured",
        "A restart would break off requests in flight.",
        "Add the drain lines that `breakeven lint deployment.yaml` prints, or set updatePolicy.drain to AcceptLoss.",
    )

    PAYS_CHANGED = (
        "PaysChanged",
        "Speculation began or ceased to pay at the present load, beyond doubt, while the reason stayed the same.",
        "Nothing to do; the column PAYS and the condition Profitable say which.",
    )

    # Metrics: all of them hold the present arm.
    METRICS_AVAILABLE = (
        "MetricsAvailable",
        "Fresh figures of all ready pods, or of two thirds of them at least; the message names the others.",
    )
    METRICS_MISSING = (
        "MetricsMissing",
        "Prometheus could not be asked: no address, no answer in time, or an error.",
        "Check metricsSource.prometheus.address, its credentials and the server.",
    )
    METRICS_EMPTY = (
        "MetricsEmpty",
        "Prometheus answers, and has no series of the target's pods.",
        "Where the message says that pods cannot be scraped, look at Prometheus' target page. Else check that a PodMonitor (or scrape annotation) covers them, and that their engines run without --disable-log-stats.",
    )
    METRICS_NAN = (
        "MetricsNaN",
        "A figure is not a number, such as a mean over no requests.",
        "Wait for traffic; check that windowSeconds covers at least four scrapes.",
    )
    METRICS_STALE = (
        "MetricsStale",
        "The newest sample, or Prometheus' whole answer, is older than metricsSource.stalenessSeconds by the operator's clock; or some series of an engine ended within the window.",
        "Check the scrape targets in Prometheus, a cache in front of it, and the clocks.",
    )
    METRICS_IMPOSSIBLE = (
        "MetricsImpossible",
        "Figures contradict each other or what any engine can do; nothing is remembered of them.",
        "Look at the pod's own /metrics for what the message names, and at relabelling that merges series.",
    )
    METRICS_MISLABELLED = (
        "MetricsMislabelled",
        "There are series of the target's pods, with another model_name, or with the pod's name under other labels.",
        "Set metricsSource.servedModelName to the label's value; name other labels in metricsSource.prometheus.labelNames, or set honorLabels in the job that scrapes or federates.",
    )
    METRICS_PARTIAL = (
        "MetricsPartial",
        "More than a third of the ready pods have no series, or some of an engine's series are missing; the message names them. What is missing is neither zero nor as it was calibrated.",
        "Check why Prometheus does not scrape those pods, or which relabelling drops those series.",
    )
    CLIENTS_GIVE_UP = (
        "ClientsGiveUp",
        "More than 5 % of the requests that began were given up by their clients before their end. They count in the load; latencies come from the others alone, so neither the profile nor a roll is judged by them.",
        "Look for time-outs of clients or proxies that are shorter than answers take, and at retries, which add to the load.",
    )
    TOO_FEW_REQUESTS = (
        "TooFewRequests",
        "Fewer requests finished in the window than metricsSource.minRequests, or more than a third of the pods began or were found within its later half.",
        "Wait for traffic, lengthen windowSeconds, or lower minRequests.",
    )

    # Objectives, as users see them.
    OBJECTIVES_KEPT = (
        "ObjectivesKept",
        "The measured quantiles keep every objective of spec.slo, their bounds considered.",
    )
    OBJECTIVE_UNCERTAIN = (
        "ObjectiveUncertain",
        "Not known at present: the bounds of a measured quantile hold both, that the objective is kept and that it is missed; it has been missed for less than a window; or no objective is held against measurements any more.",
        "Wait for traffic. If it stays so, put the limit on an edge of vLLM's histogram; docs/runbooks/BreakevenObjectiveBurningFast.md lists them.",
    )

    # Profile.
    NO_PROFILE = (
        "NoProfile",
        "Nothing has been measured for this target yet. Figures, if there are any, are of its own past, and no roll rests on them.",
        "Wait for the calibration.",
    )
    NO_POD_SERVES = (
        "NoPodServes",
        "No pod of the target serves now. Only a serving pod tells which profile counts.",
        "Wait until one is Ready; the message says what keeps it, where that is known.",
    )
    CALIBRATION_PAYS_NOTHING = (
        "CalibrationPaysNothing",
        "Every candidate ran in the target's past and pays at no load, so no GPU is spent.",
        "Nothing, or ask for a calibration with the annotation breakeven.dev/recalibrate; calibration.past: Ignore measures in any case.",
    )
    PROFILE_IN_FORCE = "ProfileInForce", "A profile fits the target's fingerprint."
    FINGERPRINT_CHANGED = (
        "FingerprintChanged",
        "Image, model, engine arguments, GPU class or parallelism differ from what was measured, or changed while it was measured. An arm of another model, or one that crashes on the new template, is left for no speculation.",
        "Wait for the calibration, which begins once the changed target serves.",
    )
    CANDIDATES_CHANGED = (
        "CandidatesChanged",
        "A candidate arm of the spec, or the drafter that it has now, was not measured.",
        "Wait for the calibration.",
    )
    PROFILE_EXPIRED = (
        "ProfileExpired",
        "The profile is older than calibration.profileMaxAgeSeconds.",
        "Wait for the calibration.",
    )
    PROFILE_UNREADABLE = (
        "ProfileUnreadable",
        "The profile was written by another version or damaged.",
        "Delete the SpeculationProfile; it is measured again.",
    )
    MODEL_AGREES = (
        "ModelAgrees",
        "What is measured agrees with the profile: requests of the arm in place take as long as it predicts for their load; or, in a condition about acceptance or lengths, they are such as it was measured with.",
    )
    MODEL_UNTESTED = (
        "ModelUntested",
        "The arm in place has not been measured for timing.disagreementSeconds since it was entered or the profile came into force.",
        "Wait; a lower timing.disagreementSeconds of the installation judges sooner.",
    )
    MODEL_DISAGREES = (
        "ModelDisagrees",
        "Requests of the arm in place have taken significantly longer, or less long, than the profile predicts, for timing.disagreementSeconds: the profile is suspect, and a calibration is asked for.",
        "Wait for the calibration. If the next profile disagrees as well, look for what calibration pods do not have: another node, neighbours on the GPU, a proxy in the measured latency, other prompts.",
    )
    PROFILE_SUSPECT = (
        "ProfileSuspect",
        "The profile in force is under suspicion, and another arm should run by its word alone: it is not entered.",
        "Wait for the calibration; the condition ModelAgrees says why, and what may be decided until then.",
    )
    ACCEPTANCE_DRIFTED = (
        "AcceptanceDrifted",
        "Drafts are accepted otherwise than when the arm was calibrated, for timing.disagreementSeconds: predictions are converted to the live acceptance, with wider bounds.",
        "Let calibrations send your users' prompts (calibration.workload.prompts). If the first position fell alone, look for another tokenizer, head, engine version or sampling. The drafter may have been replaced in place (other weights under its path or tag, or vLLM's weight update): its arms are measured again.",
    )
    LENGTHS_DRIFTED = (
        "LengthsDrifted",
        "Prompts or answers have been more than 4.5 times as long, or as short, as when the arm was measured, for timing.disagreementSeconds: predictions are extrapolations.",
        "Wait for the calibration, which sends requests of the live lengths; with a workload of your own, set its lengths.",
    )
    COST_TABLE_STALE = (
        "CostTableStale",
        "Adaptive verification verifies by step times that the engine took at its start, with another context than live requests hold: half of it or less, or twice as much or more.",
        "Set VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN on the engine's container to the figure in the message. The arm's figures stand: they were measured with the table as it was.",
    )
    SUPERSEDED = (
        "Superseded",
        "It does not count, or no longer: another profile is in force, or none is; another run measures the service already; or the run's service is not there, or was deleted.",
        "Nothing to do. A run whose service was not there has to be made again when it is.",
    )

    # Calibration.
    CALIBRATION_RUNNING = (
        "CalibrationRunning",
        "A calibration is due or under way: the past of the target is read before the first one, a run is created, or its pods measure the arms. The phase says how far a run or an arm is, the message what happens now.",
        "Wait, or watch `kubectl get calrun`; calibration.past: Ignore does not read the past.",
    )
    CALIBRATION_SUCCEEDED = "CalibrationSucceeded", "All arms are measured and the fit is accepted."
    CALIBRATION_FAILED = (
        "CalibrationFailed",
        "The calibration ended without a profile.",
        "Read the message of the CalibrationRun and of its armStatuses.",
    )
    CALIBRATION_DEFERRED = (
        "CalibrationDeferred",
        "The run waits: another one is under way, the service is paused or not there, or the target does not exist or serve.",
        "Wait; the run's message names what for.",
    )
    IMAGE_CHANGED = (
        "ImageChanged",
        "The image's tag no longer means the image that the target's pods run.",
        "kubectl rollout restart the target, or name its image by digest.",
    )
    INPUT_REFUSED = (
        "InputRefused",
        "A file that the calibration reads is not there or cannot be used: the prompts of spec.calibration.workload.prompts, or results of another load generator (a run's importFrom) that cannot stand for the arms of this service. The message names file, line and field, and shows nothing of a prompt.",
        "Create the ConfigMap, key, volume or file in the service's namespace, or correct its name or text: of prompts one JSON object per line, with prompt or messages and output_tokens. Then ask for a calibration, or create a new CalibrationRun.",
    )
    ARM_MEASURED = (
        "ArmMeasured",
        "All points of an arm are stored; or the answers of all arms were compared with answers without speculation.",
    )
    ANSWERS_NOT_JUDGED = (
        "AnswersNotJudged",
        "The answers of the arms could not be compared: too few arms were measured, or none left answers.",
        "The log of the calibration pods' container `driver` says why; docs/answers.md lists what an engine must offer.",
    )
    ARM_SKIPPED = (
        "ArmSkipped",
        "An arm is not worth a start of its own. One draft length of its method, or none, is best at every batch size, so a schedule would be no arm of its own; or its first start was not measured, or the budget has no room for a second one. The message says which.",
    )
    SCHEDULE_IGNORED = (
        "ScheduleIgnored",
        "The engine takes a schedule and drafts by one length all the same, so its figures would belong to another arm.",
        "Run a newer engine, or one without data parallelism; candidates.methods[].schedule: Never keeps schedules out.",
    )
    BUDGET_EXHAUSTED = (
        "BudgetExhausted",
        "The GPU-seconds or the time of the budget are used up; points measured so far are kept.",
        "Raise calibration.budget, or measure fewer arms, loads or seconds per point.",
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "A ResourceQuota refuses a pod: of a calibration, or a new one of the target.",
        "Raise the quota or make room in it.",
    )
    ADMISSION_DENIED = (
        "AdmissionDenied",
        "An admission policy or a webhook refuses a pod: of a calibration, or a new one of the target.",
        "Read the message; the policy must allow pods like the target's.",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "A pod of a calibration or of a roll finds no node; the scheduler's words are in the message.",
        "Read what is missing (CPU, memory, a tolerated taint, a port, the volume's zone); free it, or raise calibration.pendingDeadlineSeconds.",
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        "The image of a calibration pod, or of a new pod of the target, could not be pulled.",
        "Check the image and imagePullSecrets of the target.",
    )
    ENGINE_OUT_OF_MEMORY = (
        "EngineOutOfMemory",
        "The engine ran out of GPU memory while loading: the drafter does not fit beside the model.",
        "Lower --max-model-len or raise --gpu-memory-utilization of the target, or drop the candidate.",
    )
    ENGINE_CONFIG_REFUSED = (
        "EngineConfigRefused",
        "The engine ended before it served, and refuses the arm's --speculative-config, or another argument, in its own words; the message has them.",
        "Correct the candidate's method, model or options, or the target's argument, for this version of the engine.",
    )
    ENGINE_CRASHED = (
        "EngineCrashed",
        "The engine ended by itself; the message has its last lines.",
        "Read the last lines.",
    )
    STARTUP_DEADLINE_EXCEEDED = (
        "StartupDeadlineExceeded",
        "The engine did not answer within calibration.startupDeadlineSeconds.",
        "Raise the deadline, or find out why it loads slowly.",
    )
    DRIVER_FAILED = (
        "DriverFailed",
        "The load driver ended with an error.",
        "Read the log of the Job's main container.",
    )
    POD_DISRUPTED = (
        "PodDisrupted",
        "The calibration pod was preempted, evicted or lost its node; the points it measured are kept.",
        "Nothing to do: it is continued.",
    )
    POD_KEPT = (
        "PodKept",
        "A calibration's pod was deleted and stays, because a finalizer of somebody else keeps it: it may hold its GPUs.",
        "Ask the finalizer's owner to let it go, or take it out of metadata.finalizers of the pod.",
    )
    FIT_REJECTED = (
        "FitRejected",
        "The fit refused the points, or no speculative arm, or not no speculation, has a usable point. Of a schedule: too few arms of its method have one.",
        "Read why arms failed; save the points and run `breakeven fit` on them to see all of its output. Raise calibration.pointSeconds or loads; look for other work on the GPU. candidates.methods[].schedule: Never keeps schedules out.",
    )

    # Rolls.
    ROLL_STARTED = "RollStarted", "The annotation was written; the target rolls to another arm."
    ROLLING = (
        "Rolling",
        "Pods of the target are being replaced by pods of another arm, or after an undo by pods of the previous one.",
    )
    ROLL_FINISHED = "RollFinished", "All pods of the target run the new arm."
    ROLL_CONFIRMED = (
        "RollConfirmed",
        "Measured: requests are faster on the new arm than on the old one at equal load, and by no significantly smaller factor than was promised for it.",
    )
    ROLL_NOT_WORSE = (
        "RollNotWorse",
        "Measured: the new arm loses no more than 5 % against the old one; or it gains, and significantly less than was promised.",
        "Compare promise and measurement in status.history; if the measurement falls short of the promise, ask for a calibration.",
    )
    ROLL_UNPROVEN = (
        "RollUnproven",
        "Whether the roll gained is not known. It was measured, and six windows after it the bounds hold a gain, and a loss of more than 5 % (result Unproven in status.history); or it was not measured: an arm was saturated, too few requests came, Prometheus had no figures, another change began first, or the gain is one of other loads (result Unmeasured). The message says which.",
        "Nothing to do, unless the message names what Prometheus or the profile lacks. More replicas, more requests or pods that are all warm narrow the bounds of the next roll.",
    )
    ROLL_DISPROVED = (
        "RollDisproved",
        "Measured: requests are significantly slower on the new arm than on the old one at equal load, and than was promised; the roll is undone at once, a pinned arm stays.",
        "Look for changed lengths or acceptance; ask for a calibration.",
    )
    ROLL_FAILS_REQUESTS = (
        "RollFailsRequests",
        "Measured: requests fail on the new arm that are answered on the old one (HTTP 4xx, an error in the stream, or an error of the engine). The roll is undone at once, an arm on which they fail later is left, and no speculation is entered under this profile; a pinned arm stays.",
        "Read docs/engine-refusals.md: a speculating vLLM refuses min_p and logit_bias. Take them out of the clients' requests, then set the annotation breakeven.dev/resume to a new value; or keep the engine without speculation.",
    )
    ARM_ACQUITTED = (
        "ArmAcquitted",
        "Measured after an arm was left because requests failed on it: they fail without it too. It may be entered again.",
        "Ask the clients what they send: no arm answers it.",
    )
    ARM_CRASHES = (
        "ArmCrashes",
        "Engines of the running arm crashed again and again after it was entered: it is left for no speculation, and not entered again under this profile.",
        "Read the crashed containers' logs (kubectl logs --previous); correct or drop the candidate. A new value of the annotation breakeven.dev/resume lets it try again.",
    )
    ROLLS_STOPPED = (
        "RollsStopped",
        "Three rolls in a row that the profile in force asked for were measured to lose: it asks for none any more, but where requests queue or an objective is missed.",
        "Ask for a calibration; a new value of the SpeculativeService's annotation breakeven.dev/resume lets the present profile try again.",
    )
    ROLLED_BACK = "RolledBack", "All pods run the previous arm again."
    UNDO_BLOCKED = (
        "UndoBlocked",
        "The old arm was written back, and the target's controller waits for a pod of the new arm that is not Ready.",
        "Run the `kubectl delete pod` of the message: the controller makes the pod again, with the old arm.",
    )
    ENGINE_NOT_STARTING = (
        "EngineNotStarting",
        "A pod of a roll or a calibration does not start: its volume or its container cannot be made, or it ends again and again.",
        "Read the message and the pod's log; remove the arm from the candidates if the engine cannot run it.",
    )
    ROLL_UNDONE = (
        "RollUndone",
        "The previous arm was put back.",
        "Read the reason of the undo in the message.",
    )
    ROLL_ABORTED = (
        "RollAborted",
        "The target's own controller, or a person, has aborted the update to another arm. Nothing is undone or tried again.",
        "Retry or undo it at that controller (its retry or undo); then give breakeven.dev/resume a new value.",
    )
    ROLL_DEADLINE_EXCEEDED = (
        "RollDeadlineExceeded",
        "The roll, or its undo, had not finished by its deadline.",
        "Read in the message which pods were missing, and their events and logs. A roll is undone; after an undo the operator waits no longer, and the target goes on by itself once nothing blocks it.",
    )
    INSUFFICIENT_GPU = (
        "InsufficientGPU",
        "A new pod of the roll finds no GPU.",
        "Free a GPU of the class, or let the target's strategy take a pod away first (maxUnavailable 1, maxSurge 0); a single replica needs a window of updatePolicy.windows with allowOutage for that.",
    )
    INSUFFICIENT_CAPACITY = (
        "InsufficientCapacity",
        "The pods left during a roll could not carry the load.",
        "Wait for less load, add a replica, or allow surge.",
    )
    OUTAGE_NOT_ALLOWED = (
        "OutageNotAllowed",
        "The target's strategy takes every pod away at once, and no window of updatePolicy.windows allows that now.",
        "Roll by surge if a GPU is spare, or add a window with allowOutage to updatePolicy.windows.",
    )
    OUTSIDE_WINDOWS = (
        "OutsideWindows",
        "An ordinary roll is due and updatePolicy.windows does not allow it now. A roll that protects users would not wait.",
        "Nothing to do: the message has the next window.",
    )
    GUARD_EXCEEDED = (
        "GuardExceeded",
        "The value of a guard in updatePolicy.guards is above its max; the message begins with the guard's name.",
        "Look at the guard's expression in Prometheus. Once it is good, give breakeven.dev/resume a new value to let the arm be entered again.",
    )
    AWAITS_ROLLOUT = (
        "AwaitsRollout",
        "Another arm should run. It is written beside the target's pod template, and the owner's next rollout takes it; nothing restarts for it.",
        "Roll the target when it suits you, such as by kubectl rollout restart.",
    )
    NEXT_ROLLOUT_MISSING = (
        "NextRolloutMissing",
        "updatePolicy.mode is NextRollout, and nothing puts the arm into the owner's rollouts.",
        "Upgrade to Kubernetes 1.36 and then the chart, with admissionPolicy.enabled; or choose another mode.",
    )
    ROLL_WAITS = (
        "RollWaits",
        "A roll is due and waits for another one or for the replicas to stand still: as many other services as are allowed are being rolled, somebody else rolls the target, or an autoscaler changes its replicas. The message says which.",
        "Nothing to do. The operator's maxParallelRolls says how many services roll at a time.",
    )
    REPLICAS_UNREADY = (
        "ReplicasUnready",
        "A replica of the target is pending or not ready.",
        "Bring the target to full strength first.",
    )
    BACKING_OFF = (
        "BackingOff",
        "A roll was undone; the next one waits, twice as long after each one in a row.",
        "Remove what made it fail; a new value of the SpeculativeService's annotation breakeven.dev/resume ends the wait.",
    )

    # Other writers of the target.
    TAKEN_OVER = (
        "TakenOver",
        "Somebody else set or removed the annotation; the message names who, or says that nobody shows.",
        "To hand it back set the annotation breakeven.dev/resume on the SpeculativeService to a new value.",
    )
    REVERTED_TWICE = (
        "RevertedTwice",
        "The annotation did not stay although it was written three times: somebody drops it, or a webhook strips it. The operator stopped; the message names who wrote then.",
        "Make the other tool or the webhook keep the annotation, then set breakeven.dev/resume to a new value.",
    )
    RESTORED = (
        "Restored",
        "The annotation was put back: somebody changed the target and dropped it; the message names who, and when.",
        "Let that writer merge (kubectl apply, Argo CD without Replace=true) in place of replacing the whole object.",
    )
    RESUMED = (
        "Resumed",
        "A person set breakeven.dev/resume to a new value (or paused and unpaused): the annotation is taken back, or a back-off ended.",
    )

    # The operator itself.
    WRITE_REFUSED = (
        "WriteRefused",
        "The API server refuses a write: an admission policy or webhook denies it or does not answer, or RBAC lacks the right. Nothing was changed; it is tried again, after twice the time each time in a row, at most five minutes.",
        "Read the server's words in the message: allow the write in the policy or webhook, or install the chart's RBAC. A changed spec, or a new value of the annotation breakeven.dev/resume, tries at once.",
    )
    API_ERROR = (
        "ApiError",
        "The API server refused, did not answer, or gives the operator's ServiceAccount no right; the log or the message has its words.",
        "Install the chart's RBAC for this namespace; check the server's health.",
    )
    INTERNAL_ERROR = (
        "InternalError",
        "A defect in the operator keeps it from deciding; what stands is of an earlier cycle. Other services go on.",
        "The log has the traceback: report it. docs/runbooks/BreakevenInternalError.md says what to do meanwhile.",
    )


QUIET: Final = frozenset(
    {
        ClusterReason.DISABLED,
        ClusterReason.PAUSED,
        ClusterReason.PINNED,
        ClusterReason.CONTROL,
        ClusterReason.CALIBRATION_RUNNING,
        ClusterReason.TOO_FEW_REQUESTS,
        ClusterReason.NO_PROFILE,
        ClusterReason.NO_POD_SERVES,
        ClusterReason.CALIBRATION_PAYS_NOTHING,
        ClusterReason.ROLL_STARTED,
        ClusterReason.ROLLING,
        ClusterReason.RESUMED,
        ClusterReason.ROLL_WAITS,
        ClusterReason.OUTSIDE_WINDOWS,
        ClusterReason.AWAITS_ROLLOUT,
    }
)
"""Reasons to hold, or for a condition to be False, that a person need not look at."""
